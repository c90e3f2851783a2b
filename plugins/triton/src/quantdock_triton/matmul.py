"""Products of scaled codes on a device: what is fixed for a layer and a tile is worked out once."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from quantdock.formats import ELEMENTS
from quantdock_triton.encoding import claimed_rows
from quantdock_triton.launcher import ALIGNMENT, Launcher, is_aligned
from quantdock_triton.matmul_kernel import scaled_matmul
from quantdock_triton.tile import Form, Tile
from quantdock_triton.widen import KINDS

NUM_COUNTERS = 1 << 14  # tiles of a result whose sums may be computed in parts


def _is_integer(form: Form) -> bool:
    return not (form.weight_only or ELEMENTS[form.element].is_float)


def constants_of(form: Form, tile: Tile, k: int, has_bias: bool) -> tuple[object, ...]:
    """Return what kernels of this tiling are compiled for, from A_STEPS to BLOCK_K."""
    block_k = form.block_k(tile.k)
    widen, unit = KINDS[form.element] if form.weight_only else ("", 1.0)
    return (
        form.x_cols // block_k,
        form.weight_cols // block_k,
        form.weight_rows,
        widen,
        unit,
        _is_integer(form),
        has_bias,
        k % block_k == 0,
        tile.m,
        tile.n,
        block_k,
    )


class Matmul:
    """``x @ weight.T`` for weights [N, K] of one form, in one tiling; made by ``matmul``."""

    def __init__(self, form: Form, tile: Tile, n: int, k: int, has_bias: bool) -> None:
        self.n, self.k = n, k
        self.form, self.tile = form, tile
        sums_integers = _is_integer(form) and not form.is_grouped
        self._sum_dtype = torch.int32 if sums_integers else torch.float32
        block_k = form.block_k(tile.k)
        self._tiles_of_row = -(-n // tile.n)
        self._parts = max(min(tile.parts, -(-k // block_k)), 1)
        constants = (*constants_of(form, tile, k, has_bias), tile.band)
        options = {"num_warps": tile.warps, "num_stages": tile.stages}
        self._shapes = ([tile.m, block_k], [tile.n, block_k])
        self._launchers = {
            (split, tma): Launcher(scaled_matmul, (*constants, split, tile.swap, tma), **options)
            for split in (False, True)
            for tma in (False, tile.tma)
        }

    def __call__(
        self,
        x: Tensor,
        x_scale: Tensor | None,
        weight: Tensor,
        weight_scale: Tensor,
        bias: Tensor | None,
        out: Tensor,
        counters: Tensor | None = None,
    ) -> None:
        """Write the product to ``out``.

        Shapes:
            x: codes [M or more, K], or float with a weight-only form; M >= 1. x_scale: f32 [M or
            more, groups], [1, 1], or None. weight: codes [N, K]. weight_scale: f32 grid, or [1, 1].
            bias: [N]. out: float [M, N]. counters: int32 [NUM_COUNTERS], all 0, of this stream
            alone; None: sums are not divided.
        """
        tile, m = self.tile, out.shape[0]
        num_tiles = -(-m // tile.m) * self._tiles_of_row
        parts = self._parts if counters is not None and num_tiles <= NUM_COUNTERS else 1
        partial = None
        if parts > 1:
            shape = (num_tiles * parts, tile.m * tile.n)
            partial = torch.empty(shape, dtype=self._sum_dtype, device=x.device)
        aligned = is_aligned(x), is_aligned(weight)
        tma = tile.tma and all(aligned) and self.k % ALIGNMENT == 0
        a: Any = x
        b: Any = weight
        if tma:
            rows = claimed_rows(x, m, tile.m)
            a = TensorDescriptor(x, [rows, self.k], [self.k, 1], self._shapes[0])
            b = TensorDescriptor(weight, [self.n, self.k], [self.k, 1], self._shapes[1])
        elif self.form.weight_only:
            b = weight.view(torch.uint8)
        x_row, x_group = (0, 0) if x_scale is None or x_scale.shape[0] == 1 else x_scale.stride()
        row, group = (0, 1) if weight_scale.shape[0] == 1 else weight_scale.stride()
        stride = x.stride(0)
        self._launchers[parts > 1, tma](
            (x.get_device(), x.dtype, out.dtype, *aligned, stride % 16, stride == 1,
             x_row, is_aligned(x_scale), row, group, is_aligned(weight_scale),
             None if bias is None else (bias.dtype, is_aligned(bias))),
            (num_tiles * parts, 1),
            a, b, out,
            x_scale, weight_scale, bias, partial, counters,
            m, self.n, self.k, stride, self.k, self.n,
            x_row, x_group, row, group, parts,
        )  # fmt: skip


@lru_cache(maxsize=4096)
def matmul(form: Form, tile: Tile, n: int, k: int, has_bias: bool) -> Matmul:
    """Return what multiplies by weights [n, k] of ``form`` in tiles of ``tile``."""
    return Matmul(form, tile, n, k, has_bias)
