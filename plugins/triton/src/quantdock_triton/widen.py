"""Weights of 8-bit codes, widened into memory of their own."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from quantdock_triton.launcher import Launcher, is_aligned
from quantdock_triton.tile import Form
from quantdock_triton.widen_kernel import widen_weight

HEIGHT, WIDTH = 4, 1024  # codes that a program widens
# What ``widened`` makes of a code, and what that is worth.
KINDS = {"fp8_e4m3": ("e4m3", 2.0**8), "fp8_e5m2": ("e5m2", 1.0), "int8": ("int8", 1.0)}


class Widener:
    """Widens weights [N, K] of one form; made by ``widener``."""

    def __init__(self, form: Form, n: int, k: int) -> None:
        self.n, self.k = n, k
        kind, unit = KINDS[form.element]
        constants = (form.weight_rows, form.weight_cols, kind, unit, HEIGHT, WIDTH)
        self._launcher = Launcher(widen_weight, constants, num_warps=8)

    def __call__(self, weight: Tensor, weight_scale: Tensor, dtype: torch.dtype) -> Tensor:
        """Return the real weight [N, K] in ``dtype``.

        Shapes:
            weight: codes [N, K]. weight_scale: f32 grid, or [1, 1].
        """
        out = torch.empty((self.n, self.k), dtype=dtype, device=weight.device)
        row, group = (0, 1) if weight_scale.shape[0] == 1 else weight_scale.stride()
        self._launcher(
            (out.get_device(), dtype, is_aligned(weight), is_aligned(weight_scale), row, group),
            (-(-self.n // HEIGHT), -(-self.k // WIDTH)),
            weight.view(torch.uint8),
            weight_scale,
            out,
            self.n,
            self.k,
            row,
            group,
        )
        return out


@lru_cache(maxsize=4096)
def widener(form: Form, n: int, k: int) -> Widener:
    """Return what widens weights [n, k] of ``form``."""
    return Widener(form, n, k)
