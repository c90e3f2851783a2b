"""Timing on a GPU: calls captured in a CUDA graph, over operands that are not in the cache.

The physical floor of a product is what a GPU of the measured kind cannot beat: its arithmetic at
the rate of the largest library product, or a fixed start and one read of all bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median

import torch
from torch import Tensor

COLD_BYTES = 192 << 20  # weights that are read in turn: three times the L2 of an H200
MOST_COPIES = 48
START_US = 1.9  # measured on an H200: what reading a small cold slice takes beyond its bytes
REPLAYS = 7


def time_us(calls: Sequence[Callable[[], object]], replays: int = REPLAYS) -> float:
    """Return the microseconds of one call: the median over replays of a graph of all of them."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        calls[0]()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    graph.replay()
    times = []
    for _ in range(replays):
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        stop.record()
        stop.synchronize()
        times.append(start.elapsed_time(stop) * 1000 / len(calls))
    return median(times)


def num_copies(num_bytes: int) -> int:
    """Return how many operands of a size are to take turns so that each is out of the cache."""
    return min(max(-(-COLD_BYTES // num_bytes), 4), MOST_COPIES)


class Pool:
    """Random bytes on the GPU that operands are cut from, so that making one costs nothing."""

    def __init__(self, num_bytes: int) -> None:
        values = torch.randn(num_bytes, device="cuda", dtype=torch.float16)
        self._codes = values.to(torch.float8_e4m3fn)
        self._next = 0

    def codes(self, rows: int, columns: int) -> Tensor:
        """Return e4m3 codes [rows, columns] of normally distributed values."""
        size = rows * columns
        if self._next + size > self._codes.numel():
            self._next = 0
        cut = self._codes[self._next : self._next + size].view(rows, columns)
        self._next += -(-size // 1024) * 1024
        return cut


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
