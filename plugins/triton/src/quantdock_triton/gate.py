"""Launching ``gate_kernel``."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from quantdock_triton.gate_kernel import gate_pairs
from quantdock_triton.launcher import Launcher, is_aligned, launch_options
from quantdock_triton.route import Routing

_WIDTH, _ROWS = 1024, 4  # of a tile; few rows take one each
_MANY = 64


@lru_cache(maxsize=256)
def _launcher(name: str, order: str, rows: int, early: bool) -> Launcher:
    options = launch_options(early, 4 if rows == 1 else 8)
    return Launcher(gate_pairs, (name, order, rows, _WIDTH, early), **options)


def gated(hidden: Tensor, routing: Routing, size: int, name: str, order: str) -> Tensor:
    """Return what w2 takes, [pairs, size], of what w13 returned; of pairs of no expert: nothing.

    Args:
        hidden: float [pairs, 2 * size], or [pairs, size] without a gate; contiguous.
        name: of the function, as in ``quantdock.kernels.expert_activation``; order: of columns.
    """
    num_rows, count = hidden.shape[0], routing.count
    out = torch.empty((num_rows, size), dtype=hidden.dtype, device=hidden.device)
    rows = 1 if num_rows < _MANY else _ROWS
    _launcher(name, order, rows, routing.early)(
        (hidden.get_device(), hidden.dtype, is_aligned(hidden),
         None if count is None else is_aligned(count), size % 16),
        (-(-num_rows // rows), -(-size // _WIDTH)),
        hidden, out, count, num_rows, size,
    )  # fmt: skip
    return out
