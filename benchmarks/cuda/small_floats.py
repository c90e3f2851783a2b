"""Layers of fp4 and fp6 weights on a GPU beside the floor and an unquantized layer.

Run on the GPU: ``python -m benchmarks.cuda.small_floats``. The floor is as in w4a16.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch.nn.functional import linear

from benchmarks.cuda.gemm import show
from benchmarks.cuda.timing import START_US, num_copies, read_tbs, time_us
from benchmarks.cuda.w4a16 import bf16_tflops
from quantdock.kernel import Problem
from quantdock.numerics import quantize_weight
from quantdock.schemes import parse_scheme
from quantdock_cuda.small_float_linear import CudaPackedFloatLinear, CudaSmallFloatLinear

SHAPES = ((4096, 4096), (14336, 4096), (28672, 8192), (5760, 2880))
ROWS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 4096)
HOPPER = (9, 0)
SCHEMES = {
    "nvfp4": "fp4_e2m1[1x16]:e4m3:second[*x*]",
    "mxfp4": "fp4_e2m1[1x32]:e8m0:even",
    "mxfp6": "fp6_e2m3[1x32]:e8m0:even",
}
COUNTED = "mxfp4"  # the scheme that the floor and the ratios are of
KEYS = ("M", "floor", *SCHEMES, "bf16", f"{COUNTED}/floor", f"{COUNTED}/bf16", "error")


def kernel_of(problem: Problem) -> CudaSmallFloatLinear:
    """Return the kernel that a plan has for a layer on this GPU."""
    packed = problem.scheme.weight.element == "fp4_e2m1"
    is_hopper = torch.cuda.get_device_capability() == HOPPER
    return (CudaPackedFloatLinear if packed and is_hopper else CudaSmallFloatLinear)(problem)


def rows_of(n: int, k: int, tflops: float, tbs: float) -> Iterator[list[Any]]:
    """Yield a row of the table for each number of rows of x."""
    dense = torch.randn(n, k, device="cuda", dtype=torch.bfloat16)
    plain = [dense.clone() for _ in range(num_copies(2 * n * k))]
    layers = {}
    for name, text in SCHEMES.items():
        scheme = parse_scheme(text)
        problem = Problem(scheme=scheme, n=n, k=k, shards=(n,), dtype="bfloat16")
        layer = kernel_of(problem)
        made = layer.prepare(quantize_weight(dense, scheme.weight))
        size = sum(tensor.nbytes for tensor in made.values())
        copies = [{key: t.clone() for key, t in made.items()} for _ in range(num_copies(size))]
        layers[name] = (layer, copies, size)
    for m in ROWS:
        x = torch.randn(m, k, device="cuda", dtype=torch.bfloat16)
        us = {
            name: time_us([partial(layer.apply, tensors, x, None) for tensors in copies])
            for name, (layer, copies, _) in layers.items()
        }
        plain_us = time_us([partial(linear, x, w) for w in plain])
        layer, copies, size = layers[COUNTED]
        exact = x.float() @ layer.restore(copies[0]).dequantize().t()
        error = float((layer.apply(copies[0], x, None).float() - exact).norm() / exact.norm())
        num_bytes = size + 2 * m * (n + k)
        floor = max(2 * m * n * k / tflops / 1e6, START_US + num_bytes / tbs / 1e6)
        counted = us[COUNTED]
        yield [m, floor, *us.values(), plain_us, counted / floor, counted / plain_us, error]


def main() -> None:
    """Print a table for each shape."""
    tflops, tbs = bf16_tflops(), read_tbs()
    print(f"bf16 {tflops:.0f} TFLOP/s, read {tbs:.2f} TB/s")
    for n, k in SHAPES:
        print(f"\n**N={n}, K={k}** (microseconds)\n\n| {' | '.join(KEYS)} |")
        print("|" + "---|" * len(KEYS))
        for row in rows_of(n, k, tflops, tbs):
            cells = [show(value) for value in row[:-1]]
            print(f"| {' | '.join(cells)} | {row[-1]:.1e} |", flush=True)


if __name__ == "__main__":
    with torch.inference_mode():
        main()
