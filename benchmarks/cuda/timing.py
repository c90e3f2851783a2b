"""The physical floor of a product on a GPU, which none of the measured kind can beat.

It is the product's arithmetic at the rate of the largest library product, or a fixed start and one
read of all bytes. How calls are timed: ``quantdock_cuda.tuning.timing``.
"""

from __future__ import annotations

import torch

from quantdock_cuda.tuning.timing import Pool as Pool
from quantdock_cuda.tuning.timing import num_copies as num_copies
from quantdock_cuda.tuning.timing import time_us as time_us

START_US = 1.9  # measured on an H200: what reading a small cold slice takes beyond its bytes


def floor_us(m: int, n: int, k: int, *, tflops: float, read_tbs: float) -> float:
    """Return the floor of an fp8 product with 16-bit results."""
    num_bytes = m * k + n * k + 2 * m * n
    return max(2 * m * n * k / tflops / 1e6, START_US + num_bytes / read_tbs / 1e6)


def read_tbs(num_bytes: int = 4 << 30) -> float:
    """Return the bandwidth of a sum over all of a tensor, in TB/s."""
    source = torch.zeros(num_bytes // 4, dtype=torch.float32, device="cuda").normal_()
    return num_bytes / time_us([source.sum]) / 1e6


def fp8_tflops(size: int = 8192) -> float:
    """Return the rate of the library's per-tensor fp8 product of [size, size] matrices."""
    a, b = (torch.randn(size, size, device="cuda").to(torch.float8_e4m3fn) for _ in range(2))
    one = torch.ones((), device="cuda")
    us = time_us([
        lambda: torch._scaled_mm(a, b.t(), one, one, out_dtype=torch.bfloat16, use_fast_accum=True)
    ] * 8)  # fmt: skip
    return 2 * size**3 / us / 1e6
