"""Find the fastest way for each shape and write the table that the CUDA plugin reads.

Run on the GPU: ``python -m benchmarks.cuda.tune TABLE.json [SEED.json]``. With a table as a seed,
such as that of an earlier run, only the ways that it lists are tried.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import torch

from benchmarks.cuda.operands import Operands
from benchmarks.cuda.shapes import FORMS, SHAPES, TUNED_ROWS
from benchmarks.cuda.timing import Pool
from quantdock_cuda import block_matmul
from quantdock_cuda.tiling import LIBRARY
from quantdock_triton.tile import Form, Tile, parse_tile

SMALL = 128  # rows up to which the weight is the left operand of plain Triton's kernel
SHARED_BYTES = 225 << 10
STAGES = (3, 4, 6, 8, 12, 16)  # of the kernel whose warps have roles
COPY_ENGINE = 1.03  # describing operands to it takes the host time: where few rows make it matter
KEPT = 3  # ways that the table lists for each number of rows, besides a tile if none is among them


def plain(form: Form, m: int) -> Iterator[Tile]:
    """Yield tiles of plain Triton's kernel for ``m`` rows, each with one part."""
    if m > SMALL:
        sizes = [(128, 128), (64, 128), (128, 256), (64, 256), (256, 128), (128, 64)]
        for (height, width), warps, stages in product(sizes, (4, 8), (3, 4)):
            values = height * width // (32 * warps)
            if 32 <= values <= (64 if form.is_grouped else 128):
                tile = Tile(m=height, n=width, k=128, warps=warps, stages=stages, tma=True)
                yield tile.fitted(form, SHARED_BYTES)
        return
    heights = {1: (16,), 16: (16,), 32: (16, 32), 64: (16, 32, 64), 128: (32, 64, 128)}[m]
    depths = (128,) if form.is_grouped else (128, 256)
    for height, width, depth, warps, stages, tma in product(
        heights, (64, 128), depths, (4, 8), (3, 4, 6, 8), (False, True)
    ):
        tile = Tile(m=height, n=width, k=depth, warps=warps, stages=stages, swap=True, tma=tma)
        fits = tile.shared_bytes(form) <= SHARED_BYTES
        if fits and height * width // (32 * warps) <= 64 and (warps == 4 or width == 128):
            yield tile


def with_roles(m: int) -> Iterator[Tile]:
    """Yield tiles of the kernel whose warps have roles, each with one part."""
    sizes = {
        1: [(8, 64, True), (8, 128, True)],
        16: [(16, 64, True), (16, 128, True)],
        32: [(32, 64, True), (32, 128, True), (64, 64, False)],
        64: [(64, 64, False), (64, 128, False), (32, 64, True)],
        128: [(64, 64, False), (64, 128, False), (128, 64, False), (128, 128, False)],
    }.get(m, [(64, 128, False), (128, 64, False), (128, 128, False)])
    for (height, width, swap), stages, resident in product(sizes, STAGES, (1, 2, 3)):
        tile = Tile(m=height, n=width, k=128, stages=stages, resident=resident, roles=True)
        tile = replace(tile, swap=swap)
        groups = (width if swap else height) // 64
        values = height * width // groups // 128
        has_room = values <= {1: 64, 2: 64, 3: 16}[resident] // groups or resident == 1
        scratch = 8 << 10
        fits = resident * (tile.shared_bytes(FORMS["block"]) + scratch) <= SHARED_BYTES
        if has_room and fits and groups * resident <= 4:
            yield tile


def divisions(tile: Tile, m: int, n: int, k: int, num_sms: int) -> Iterator[Tile]:
    """Yield ``tile`` with the numbers of parts that could fill the device."""
    num_tiles = -(-m // tile.m) * -(-n // tile.n)
    for parts in (1, 2, 3, 4, 6, 8):
        enough = parts == 1 or num_tiles * (parts - 1) < 2.5 * num_sms
        if enough and k // tile.k >= 2 * parts and (parts == 1 or tile.swap or tile.roles):
            yield replace(tile, parts=parts)


def candidates(name: str, m: int, n: int, k: int, seed: Any) -> list[Tile]:
    """Return the tiles to try."""
    form = FORMS[name]
    num_sms = torch.cuda.get_device_properties(0).multi_processor_count
    seeds = seed.get(name, {}).get(f"{n}x{k}", {}).get(str(m))
    if seeds is not None:
        return list(dict.fromkeys(parse_tile(way) for _, way in seeds if way != LIBRARY))
    bases = [*(with_roles(m) if name == "block" else ()), *plain(form, m)]
    return [tile for base in bases for tile in divisions(base, m, n, k, num_sms)]


def compile_one(job: tuple[str, Tile]) -> str:
    """Compile a tile into Triton's cache; return why it cannot be, or nothing."""
    name, tile = job
    try:
        case = Operands(FORMS[name], 16, 1024, 1024, Pool(1 << 21))
        case.run(tile, case.weights[0])
        torch.cuda.synchronize()
    except Exception as error:
        return f"{tile}: {type(error).__name__} {str(error)[:100]}"
    return ""


def compile_all(seed: Any) -> None:
    """Compile every tile that will be tried, on all processors."""
    jobs = {
        (name, replace(tile, parts=min(tile.parts, 2)))
        for name, m, (n, k) in product(FORMS, TUNED_ROWS, SHAPES)
        for tile in candidates(name, m, n, k, seed)
    }
    context = multiprocessing.get_context("spawn")
    with context.Pool(max((os.cpu_count() or 2) - 1, 1)) as workers:
        failures = [text for text in workers.imap_unordered(compile_one, jobs, 4) if text]
    print(f"{len(jobs)} tiles compiled, {len(failures)} failed", *failures[:9], sep="\n  ")


def tune(name: str, m: int, n: int, k: int, pool: Pool, seed: Any) -> list[list[Any]]:
    """Return the fastest ways with their times in microseconds; a tile is always among them."""
    form = FORMS[name]
    case = Operands(form, m, n, k, pool)
    tried: list[tuple[float, str | Tile]] = []
    for way in (*candidates(name, m, n, k, seed), *([LIBRARY] if m > 16 else [])):
        if isinstance(way, Tile) and way.roles and not block_matmul.takes(form, way, k):
            continue
        try:
            tried.append((case.time(way, 3), way))
        except Exception as error:
            print(f"{way} at M={m} N={n} K={k}: {str(error)[:80]}")
            torch.cuda.synchronize()

    def cost(pair: tuple[float, str | Tile]) -> float:
        us, way = pair
        return us * (COPY_ENGINE if m <= SMALL and isinstance(way, Tile) and way.tma else 1.0)

    tried.sort(key=cost)
    kept = tried[:6] + [pair for pair in tried if isinstance(pair[1], Tile)][:1]
    again = [(case.time(way, 9), way) for way in dict.fromkeys(way for _, way in kept)]
    best = sorted(again, key=cost)
    tile = next(pair for pair in best if pair[1] != LIBRARY)
    return [[round(us, 2), str(way)] for us, way in dict.fromkeys((*best[:KEPT], tile))]


def main(target: str, seed_file: str | None = None) -> None:
    """Tune every form and write the table after each shape."""
    seed = json.loads(Path(seed_file).read_text()) if seed_file else {}
    started = time.perf_counter()
    compile_all(seed)
    print(f"compiling took {time.perf_counter() - started:.0f} s", flush=True)
    pool, table = Pool(1 << 29), {name: {} for name in FORMS}
    for (n, k), name in product(SHAPES, FORMS):
        rows = {str(m): tune(name, m, n, k, pool, seed) for m in TUNED_ROWS}
        table[name][f"{n}x{k}"] = rows
        told = "; ".join(f"{m}: {ways[0][0]} {ways[0][1]}" for m, ways in rows.items())
        print(f"{name} {n}x{k} ({time.perf_counter() - started:.0f} s): {told}", flush=True)
        Path(target).write_text(json.dumps(table, indent=1) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
