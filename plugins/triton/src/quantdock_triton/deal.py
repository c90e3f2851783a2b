"""Columns of x dealt out in two, for words whose two codes are neighbours.

>>> import torch
>>> order(torch.arange(8)[None], 2).tolist()
[[0, 2, 1, 3, 4, 6, 5, 7]]
"""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from quantdock_triton.deal_kernel import deal_columns
from quantdock_triton.launcher import ALIGNMENT, Launcher

WIDTH = 1024  # columns that a program deals out


def order(x: Tensor, plane: int) -> Tensor:
    """Return x [M, K] with, of each two times ``plane`` columns, the even ones before the odd."""
    return x.reshape(x.shape[0], -1, plane, 2).transpose(2, 3).reshape(x.shape)


@lru_cache(maxsize=64)
def _launcher(plane: int, early: bool) -> Launcher:
    options = {"launch_pdl": True} if early else {}
    return Launcher(deal_columns, (plane, WIDTH, early), num_warps=4, **options)


def deal(x: Tensor, plane: int, *, early: bool = False) -> Tensor:
    """Return ``order(x, plane)`` in one launch; columns of x [M, K] are side by side.

    K is a multiple of two times ``plane``, and M at least 1.

    Args:
        early: start while the kernel before ends, and let the one after do so (NVIDIA from sm_90).
    """
    (m, k), stride = x.shape, x.stride(0)
    out = torch.empty((m, k), dtype=x.dtype, device=x.device)
    key = x.get_device(), x.dtype, x.data_ptr() % ALIGNMENT == 0, stride % 16 == 0, stride == 1
    _launcher(plane, early)(key, (m, -(-k // WIDTH)), x, out, k, stride)
    return out
