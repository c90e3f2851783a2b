"""fp8 products on a GPU beside the floor, the libraries and an unquantized layer.

Run on the GPU: ``python -m benchmarks.cuda.gemm``. DeepGEMM's product stands beside those in blocks
where it is installed. Ways of one product take turns, so that each meets the same clocks.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from math import exp, log
from statistics import median
from typing import Any

import torch
import triton
from torch import Tensor
from torch.nn.functional import linear

from benchmarks.cuda.shapes import FORMS, ROWS, SHAPES
from benchmarks.cuda.timing import (
    Pool,
    floor_us,
    fp8_tflops,
    num_copies,
    read_tbs,
    time_us,
)
from quantdock.kernel import Problem
from quantdock.numerics import quantize_weight
from quantdock.schemes import parse_scheme
from quantdock_cuda.device import device_of
from quantdock_cuda.libraries import DEEP_GEMM, LIBRARY, is_installed
from quantdock_cuda.scaled_linear import CudaScaledLinear
from quantdock_cuda.tables import Way
from quantdock_cuda.tiling import bucket, ways
from quantdock_cuda.tuning.operands import Operands
from quantdock_triton.tile import Tile

SCHEMES = {
    "row": "fp8_e4m3[1x*] x fp8_e4m3[1x*]:dynamic",
    "block": "fp8_e4m3[128x128] x fp8_e4m3[1x128]:dynamic",
    "w8a16": "fp8_e4m3[1x*]",
}
TURNS, REPLAYS = 3, 3  # of each way of a product
KEYS = ("M", "floor", "block", "block way", "block/floor", "block own", "torch 1x128", "DeepGEMM",
        "row", "row way", "row/floor", "row own", "torch rowwise", "torch tensor", "bf16",
        "layer block", "layer row", "layer w8a16")  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """Microseconds of one product: as the plugin computes it, in its best tile, by libraries."""

    taken: float
    way: str
    own: float
    libraries: dict[str, float]


def product_us(name: str, m: int, n: int, k: int, pool: Pool) -> Times:
    """Return the times of a product, whose results are compared with f32 products."""
    case = Operands(FORMS[name], m, n, k, pool)
    found = ways(FORMS[name], device_of(0), n, k, bucket(m))
    tile = next(way for way in found if isinstance(way, Tile))
    libraries = [] if name == "block" and m < 16 else [LIBRARY]
    libraries += [DEEP_GEMM] if name == "block" and is_installed(DEEP_GEMM) else []
    turns: dict[Way, list[float]] = {way: [] for way in (tile, *libraries)}
    for way in turns:
        error = case.error(way)
        assert error < 5e-3, f"{name} M={m} N={n} K={k}, {way}: off by {error:.1e}"
    for _ in range(TURNS):
        for way, times in turns.items():
            times.append(case.time(way, REPLAYS))
    us = {way: median(times) for way, times in turns.items()}
    beside = {library: us[library] for library in libraries}
    return Times(taken=us[found[0]], way=str(found[0]), own=us[tile], libraries=beside)


def tensor_us(m: int, n: int, k: int, pool: Pool) -> float:
    """Return the time of the library's product with one scale for each operand."""
    one, x = torch.ones((), device="cuda"), pool.codes(m, k)
    weights = [pool.codes(n, k) for _ in range(num_copies(n * k) if m <= 512 else 4)]

    def run(weight: Tensor) -> Tensor:
        return torch._scaled_mm(
            x, weight.t(), one, one, out_dtype=torch.bfloat16, use_fast_accum=True
        )

    return time_us([lambda w=w: run(w) for w in weights])


class Layers:
    """Whole layers, quantization of x included, and unquantized ones, of one shape."""

    def __init__(self, n: int, k: int) -> None:
        copies = min(num_copies(n * k), 12)
        self.k = k
        self.dense = [torch.randn(n, k, device="cuda", dtype=torch.bfloat16) for _ in range(copies)]
        self.layers, self.tensors = {}, {}
        for name, scheme in SCHEMES.items():
            parsed = parse_scheme(scheme)
            problem = Problem(scheme=parsed, n=n, k=k, shards=(n,), dtype="bfloat16")
            self.layers[name] = layer = CudaScaledLinear(problem)
            self.tensors[name] = [
                layer.prepare(quantize_weight(w, parsed.weight)) for w in self.dense
            ]

    def time(self, m: int) -> dict[str, float]:
        """Return the microseconds of each kind."""
        x = torch.randn(m, self.k, device="cuda", dtype=torch.bfloat16)
        turns = len(self.dense) if m <= 512 else 2
        found = {"bf16": time_us([lambda w=w: linear(x, w) for w in self.dense[:turns]])}
        for name, layer in self.layers.items():
            calls = [partial(layer.apply, t, x, None) for t in self.tensors[name][:turns]]
            found[name] = time_us(calls)
        return found


def rows_of(n: int, k: int, pool: Pool, limits: dict[str, float]) -> Iterator[list[Any]]:
    """Yield the numbers of one layer shape, one row for each M."""
    layers = Layers(n, k)
    for m in ROWS:
        floor, layer = floor_us(m, n, k, **limits), layers.time(m)
        block, row = (product_us(name, m, n, k, pool) for name in ("block", "row"))
        yield [m, floor, block.taken, block.way, block.taken / floor, block.own,
               block.libraries.get(LIBRARY), block.libraries.get(DEEP_GEMM),
               row.taken, row.way, row.taken / floor, row.own, row.libraries[LIBRARY],
               tensor_us(m, n, k, pool), layer["bf16"], layer["block"], layer["row"],
               layer["w8a16"]]  # fmt: skip


def mean(ratios: list[float]) -> float:
    """Return the geometric mean."""
    return exp(sum(log(r) for r in ratios) / len(ratios))


def summarize(rows: list[dict[str, Any]]) -> None:
    """Print geometric means."""
    few = [row for row in rows if row["M"] <= 128]
    print(f"\nblock, M <= 128: {mean([r['block/floor'] for r in few]):.2f} of the floor")
    ratios = [r["torch rowwise"] / r["row"] for r in few if r["M"] <= 64]
    print(f"row, M <= 64: {mean(ratios):.2f} times as fast as torch rowwise, {min(ratios):.2f} at "
          "the least")  # fmt: skip
    for m in ROWS:
        beside = [r for r in rows if r["M"] == m and r["DeepGEMM"] is not None]
        if beside:
            ratios = [r["block own"] / r["DeepGEMM"] for r in beside]
            print(f"own tile for blocks beside DeepGEMM, M = {m}: {mean(ratios):.2f} of its time, "
                  f"{min(ratios):.2f} to {max(ratios):.2f}")  # fmt: skip


def show(value: Any) -> str:
    """Return a cell of the table."""
    if isinstance(value, float):
        return f"{value:.2f}" if value < 3 else f"{value:.1f}"
    return "-" if value is None else str(value)


def main() -> None:
    """Print a table for each shape, then the means."""
    pool = Pool(1 << 29)
    limits = {"tflops": fp8_tflops(), "read_tbs": read_tbs()}
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, triton {triton.__version__}")
    print("read {read_tbs:.2f} TB/s, fp8 {tflops:.0f} TFLOP/s".format(**limits))
    found: list[list[Any]] = []
    for n, k in SHAPES:
        print(f"\n**N={n}, K={k}** (microseconds)\n\n| {' | '.join(KEYS)} |")
        print("|" + "---|" * len(KEYS))
        for row in rows_of(n, k, pool, limits):
            print(f"| {' | '.join(show(value) for value in row)} |", flush=True)
            found.append(row)
    summarize([dict(zip(KEYS, row, strict=True)) for row in found])


if __name__ == "__main__":
    main()
