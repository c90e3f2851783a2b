"""Launching ``gather_kernel``."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from quantdock_triton.gather_kernel import gather_rows
from quantdock_triton.launcher import Launcher, is_aligned, launch_options
from quantdock_triton.programs import key_of
from quantdock_triton.route import Routing

_ROWS, _WIDTH = 4, 1024  # of a tile


@lru_cache(maxsize=4)
def _launcher(early: bool) -> Launcher:
    return Launcher(gather_rows, (_ROWS, _WIDTH, early), **launch_options(early, 8))


def rows_of_pairs(x: Tensor, routing: Routing) -> Tensor:
    """Return the rows of each pair's token [pairs, K], sorted by expert; of no expert: nothing.

    Args:
        x: float [tokens, K], columns side by side. routing: of pairs that are sorted.
    """
    num_pairs, k = routing.order.shape[0], x.shape[1]
    out = torch.empty((num_pairs, k), dtype=x.dtype, device=x.device)
    count, stride = routing.count, x.stride(0)
    _launcher(routing.early)(
        (*key_of(x, stride), is_aligned(count), k),
        (-(-num_pairs // _ROWS), -(-k // _WIDTH)),
        x, out, routing.order, count, routing.top_k, k, stride,
    )  # fmt: skip
    return out
