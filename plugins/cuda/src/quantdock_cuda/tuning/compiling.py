"""Compiling tiles ahead of their measurement, on all processors, into Triton's cache."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterator, Sequence

import torch

from quantdock_cuda.tuning.operands import Operands
from quantdock_cuda.tuning.timing import Pool
from quantdock_triton.tile import Form, Tile

_ROWS, _SIZE = 16, 1024  # of the product that is computed once


def compiled(jobs: Sequence[tuple[Form, Tile]]) -> Iterator[str]:
    """Compile each tile; yield, in no order, why it cannot be, or nothing."""
    context = multiprocessing.get_context("spawn")
    with context.Pool(max((os.cpu_count() or 2) - 1, 1)) as workers:
        yield from workers.imap_unordered(_compile, jobs, 4)


def _compile(job: tuple[Form, Tile]) -> str:
    form, tile = job
    try:
        case = Operands(form, _ROWS, _SIZE, _SIZE, Pool(1 << 21))
        case.run(tile, case.weights[0])
        torch.cuda.synchronize()
    except Exception as error:
        return f"{tile}: {type(error).__name__} {str(error)[:100]}"
    return ""
