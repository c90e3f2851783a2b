"""x with its columns in another order, and times a factor for each, in one launch."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from quantdock_triton.launcher import ALIGNMENT, Launcher, is_aligned
from quantdock_triton.reorder_kernel import reorder_columns

WIDTH = 1024  # columns that a program writes


@lru_cache(maxsize=2)
def _launcher(early: bool) -> Launcher:
    options = {"launch_pdl": True} if early else {}
    return Launcher(reorder_columns, (WIDTH, early), num_warps=4, **options)


def reorder(
    x: Tensor, order: Tensor | None, factor: Tensor | None, *, early: bool = False
) -> Tensor:
    """Return ``(x * factor)[:, order]`` in x's dtype, rounded once.

    Shapes:
        x: [M, K], M >= 1, columns side by side. order: int32 [K]. factor: f32 [K].
    Args:
        early: start while the kernel before ends, and let the one after do so (NVIDIA from sm_90).
    """
    (m, k), stride = x.shape, x.stride(0)
    out = torch.empty((m, k), dtype=x.dtype, device=x.device)
    key = (
        (x.get_device(), x.dtype, x.data_ptr() % ALIGNMENT == 0, stride % 16 == 0, stride == 1),
        (k % 16 == 0, k == 1),
        None if order is None else is_aligned(order),
        None if factor is None else is_aligned(factor),
    )
    _launcher(early)(key, (m, -(-k // WIDTH)), x, order, factor, out, k, stride)
    return out
