"""fp8 products on a GPU beside the floor, the libraries and an unquantized layer.

Run on the GPU: ``python -m benchmarks.cuda.gemm``.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from math import exp, log
from typing import Any

import torch
import triton
from torch import Tensor
from torch.nn.functional import linear

from benchmarks.cuda.operands import Operands
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
from quantdock_cuda.scaled_linear import CudaScaledLinear
from quantdock_cuda.tiling import LIBRARY, bucket, ways

SCHEMES = {
    "row": "fp8_e4m3[1x*] x fp8_e4m3[1x*]:dynamic",
    "block": "fp8_e4m3[128x128] x fp8_e4m3[1x128]:dynamic",
}
HEADS = ("M", "floor", "block", "way", "/floor", "torch 1x128", "row", "way", "/floor",
         "torch rowwise", "torch tensor", "bf16", "layer block", "layer row")  # fmt: skip


def product_us(name: str, m: int, n: int, k: int, pool: Pool) -> tuple[float, float | None, str]:
    """Return the time of the way that the plugin takes, of the library, and the way."""
    case = Operands(FORMS[name], m, n, k, pool)
    way = ways(FORMS[name], device_of(0), n, k, bucket(m))[0]
    error = case.error(way)
    assert error < 5e-3, f"{name} M={m} N={n} K={k}, {way}: off by {error:.1e}"
    library = None if name == "block" and m < 16 else case.time(LIBRARY, 7)
    return case.time(way, 7), library, str(way)


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
        floor = floor_us(m, n, k, **limits)
        block, library_block, block_way = product_us("block", m, n, k, pool)
        row, library_row, row_way = product_us("row", m, n, k, pool)
        tensor, layer = tensor_us(m, n, k, pool), layers.time(m)
        yield [m, floor, block, block_way, block / floor, library_block, row, row_way, row / floor,
               library_row, tensor, layer["bf16"], layer["block"], layer["row"]]  # fmt: skip


def mean(ratios: list[float]) -> float:
    """Return the geometric mean."""
    return exp(sum(log(r) for r in ratios) / len(ratios))


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
        print(f"\n**N={n}, K={k}** (microseconds)\n\n| {' | '.join(HEADS)} |")
        print("|" + "---|" * len(HEADS))
        for row in rows_of(n, k, pool, limits):
            print(f"| {' | '.join(show(value) for value in row)} |", flush=True)
            found.append(row)
    few = [row for row in found if row[0] <= 128]
    print(f"\nblock, M <= 128: {mean([r[4] for r in few]):.2f} of the floor (geometric mean)")
    print(f"row, M <= 64: {mean([r[9] / r[6] for r in few if r[0] <= 64]):.2f} times as fast as "
          f"torch rowwise; at the worst M {min(r[9] / r[6] for r in found):.2f}")  # fmt: skip


if __name__ == "__main__":
    main()
