"""Timing on a GPU: calls captured in a CUDA graph, over operands that are not in the cache."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

import torch
from torch import Tensor

COLD_BYTES = 192 << 20  # weights that are read in turn: three times the L2 of an H200
MOST_COPIES = 48
REPLAYS = 7
_PIECE = 1 << 26  # codes that are made at a time
_STREAM: Any = torch.cuda.Stream  # their signatures have no types
_EVENT: Any = torch.cuda.Event


def time_us(calls: Sequence[Callable[[], object]], replays: int = REPLAYS) -> float:
    """Return the microseconds of one call: the median over replays of a graph of all of them."""
    side: torch.cuda.Stream = _STREAM()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        calls[0]()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    graph.replay()
    times: list[float] = []
    for _ in range(replays):
        start, stop = (_EVENT(enable_timing=True) for _ in range(2))
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
        self._codes = torch.empty(num_bytes, device="cuda", dtype=torch.float8_e4m3fn)
        for piece in torch.split(self._codes, _PIECE):
            piece.copy_(torch.randn(piece.numel(), device="cuda", dtype=torch.float16))
        self._next = 0

    def codes(self, rows: int, columns: int) -> Tensor:
        """Return e4m3 codes [rows, columns] of normally distributed values."""
        size = rows * columns
        if self._next + size > self._codes.numel():
            self._next = 0
        cut = self._codes[self._next : self._next + size].view(rows, columns)
        self._next += -(-size // 1024) * 1024
        return cut
