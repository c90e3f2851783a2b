"""Launching ``block_kernel``: what is fixed for a layer and a tile is worked out once."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor
from triton.experimental.gluon.language import NVMMASharedLayout
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from quantdock_cuda.block_kernel import block_matmul
from quantdock_triton.launcher import Launcher, is_aligned
from quantdock_triton.matmul import NUM_COUNTERS
from quantdock_triton.tile import Form, Tile

STEP = 128  # columns that share a scale
GROUP = 64  # rows of the left operand that four warps work on
LAYOUT = NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=8, rank=2)
# Registers of a thread at launch, and of those of a second multiplying group, by how many groups
# multiply and how many programs a multiprocessor holds. The first group has what these leave.
_REGISTERS = {
    (1, 1): (255, 0),
    (1, 2): (128, 0),
    (1, 3): (80, 0),
    (1, 4): (64, 0),
    (2, 1): (168, 240),
    (2, 2): (80, 104),
}


def registers_of(tile: Tile) -> tuple[int, int]:
    """Return the registers of a thread at launch, and of a second group that multiplies."""
    return _REGISTERS[_groups(tile), tile.resident]


def _groups(tile: Tile) -> int:
    return (tile.n if tile.swap else tile.m) // GROUP


def takes(form: Form, tile: Tile, k: int) -> bool:
    """Return whether the kernel can run this form, tile and number of columns."""
    return (
        (form.x_cols, form.weight_cols) == (STEP, STEP)
        and not form.weight_only
        and form.element == "fp8_e4m3"
        and form.weight_rows % tile.n == 0
        and (_groups(tile), tile.resident) in _REGISTERS
        and k % 16 == 0
    )


class BlockMatmul:
    """``x @ weight.T`` of e4m3 codes in blocks, in one tiling; made by ``matmul``."""

    def __init__(self, form: Form, tile: Tile, n: int, k: int, has_bias: bool) -> None:
        self.n, self.k, self.tile = n, k, tile
        self._steps = -(-k // STEP)
        self._parts = max(min(tile.parts, self._steps), 1)
        self._groups = _groups(tile)
        registers, others = registers_of(tile)
        constants = (form.weight_rows, has_bias, tile.m, tile.n, tile.band, tile.stages)
        options = {"num_warps": 4, "maxnreg": registers}
        self._launchers = {
            split: Launcher(block_matmul, (*constants, split, tile.swap, others), **options)
            for split in (False, True)
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
        """Write the product to ``out``; shapes as in ``quantdock_triton.matmul``.

        Codes are aligned; the scales of x have columns side by side, one row after the other.
        """
        assert x_scale is not None, "blocks of x have scales"
        tile, m = self.tile, out.shape[0]
        num_tiles = -(-m // tile.m) * -(-self.n // tile.n)
        may_split = counters is not None and num_tiles * self._groups <= NUM_COUNTERS
        parts = self._parts if may_split else 1
        partial = None
        if parts > 1:
            shape = (num_tiles * parts, tile.m * tile.n)
            partial = torch.empty(shape, dtype=torch.float32, device=x.device)
        a, b = (
            TensorDescriptor(codes, [rows, self.k], [self.k, 1], [height, STEP], LAYOUT)
            for codes, rows, height in ((x, m, tile.m), (weight, self.n, tile.n))
        )
        scale_row = weight_scale.stride(0) if weight_scale.shape[0] > 1 else 0
        self._launchers[parts > 1](
            (x.get_device(), out.dtype, scale_row, is_aligned(x_scale), is_aligned(weight_scale),
             None if bias is None else (bias.dtype, is_aligned(bias))),
            (num_tiles * parts, 1),
            a, b, out,
            x_scale, weight_scale, bias, partial, counters,
            m, self.n, self._steps, x_scale.stride(1), scale_row, parts,
        )  # fmt: skip


@lru_cache(maxsize=4096)
def matmul(form: Form, tile: Tile, n: int, k: int, has_bias: bool) -> BlockMatmul:
    """Return what multiplies by weights [n, k] of ``form`` in tiles of ``tile``."""
    return BlockMatmul(form, tile, n, k, has_bias)
