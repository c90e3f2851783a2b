"""Find the fastest way for each shape and write the table that the CUDA plugin ships.

Run on the GPU: ``python -m benchmarks.cuda.tune TABLE.json [SEED.json]``. With a table as a seed,
such as that of an earlier run, only the ways that it lists are tried. What is tried otherwise:
``quantdock_cuda.tuning.candidates``. Users make tables of their own by ``quantdock tune``.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

from benchmarks.cuda.shapes import FORMS, SHAPES, TUNED_ROWS
from quantdock_cuda.device import device_of
from quantdock_cuda.libraries import DEEP_GEMM, LIBRARIES, LIBRARY, is_installed
from quantdock_cuda.tuning import candidates
from quantdock_cuda.tuning.compiling import Job, compiled
from quantdock_cuda.tuning.operands import Operands
from quantdock_cuda.tuning.search import search
from quantdock_cuda.tuning.timing import Pool
from quantdock_triton.tile import Tile, parse_tile

MANY = 512  # rows from which DeepGEMM is tried, where it is installed


def tiles(name: str, m: int, n: int, k: int, seed: Any) -> list[Tile]:
    """Return the tiles to try."""
    seeds = seed.get(name, {}).get(f"{n}x{k}", {}).get(str(m))
    if seeds is not None:
        return list(dict.fromkeys(parse_tile(way) for _, way in seeds if way not in LIBRARIES))
    return candidates.tiles(FORMS[name], device_of(0), m, n, k)


def libraries(name: str, m: int) -> list[str]:
    """Return the libraries to try; few rows go to tiles, whose launches the host can record."""
    names = [LIBRARY] if m > 16 else []
    return names + [DEEP_GEMM] * (name == "block" and m >= MANY and is_installed(DEEP_GEMM))


def compile_all(seed: Any) -> None:
    """Compile every tile that will be tried, on all processors."""
    jobs: dict[Job, None] = {
        (FORMS[name], replace(tile, parts=min(tile.parts, 2)), False): None
        for name, m, (n, k) in product(FORMS, TUNED_ROWS, SHAPES)
        for tile in tiles(name, m, n, k, seed)
    }
    failures = [text for text in compiled(list(jobs)) if text]
    print(f"{len(jobs)} tiles compiled, {len(failures)} failed", *failures[:9], sep="\n  ")


def tune(name: str, m: int, n: int, k: int, pool: Pool, seed: Any) -> list[list[Any]]:
    """Return the fastest ways with their times in microseconds; a tile is always among them."""
    case = Operands(FORMS[name], m, n, k, pool)
    tried = (*tiles(name, m, n, k, seed), *libraries(name, m))
    found = search(case, tried, lambda count: None)
    for failure in found.failures:
        print(f"{failure} at M={m} N={n} K={k}")
    return [[round(us, 2), str(way)] for us, way in found.best]


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
