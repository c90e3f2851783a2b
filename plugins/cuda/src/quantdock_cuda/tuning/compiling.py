"""Compiling tiles ahead of their measurement, on all processors, into Triton's cache."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Iterator, Sequence

import torch

from quantdock_cuda.tuning.operands import Operands
from quantdock_cuda.tuning.timing import Pool
from quantdock_triton.tile import Form, Tile

Job = tuple[Form, Tile, bool]  # whether the columns are no multiple of the tile's
_ROWS, _SIZE, _RAGGED_SIZE = 16, 1024, 1040  # of the product that is computed once
_WORKER_BYTES = 1 << 30  # of the GPU's memory, with all that CUDA keeps for a process
_TOGETHER = 4  # jobs that a worker takes at a time


def compiled(jobs: Sequence[Job]) -> Iterator[str]:
    """Compile each tile; yield, in no order, why it cannot be, or nothing."""
    room = int(torch.cuda.mem_get_info()[0] // (2 * _WORKER_BYTES))
    workers = max(min((os.cpu_count() or 2) - 1, room, len(jobs) // _TOGETHER), 1)
    if workers == 1:
        yield from map(_compile, jobs)
        return
    context = multiprocessing.get_context("spawn")
    with context.Pool(workers, _start, (torch.cuda.current_device(),)) as pool:
        yield from pool.imap_unordered(_compile, jobs, _TOGETHER)


def _start(device: int) -> None:
    """Work for the parent's GPU, and leave interrupts to the parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.cuda.set_device(device)


def _compile(job: Job) -> str:
    form, tile, is_ragged = job
    try:
        size = _RAGGED_SIZE if is_ragged else _SIZE
        case = Operands(form, _ROWS, _SIZE, size, Pool(1 << 21))
        case.run(tile, case.weights[0])
        torch.cuda.synchronize()
    except Exception as error:
        return f"{tile}: {type(error).__name__} {str(error)[:100]}"
    return ""
