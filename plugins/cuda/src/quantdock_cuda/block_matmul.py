"""Launching ``block_kernel``: what is fixed for a layer and a tile is worked out once."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import torch
from torch import Tensor
from triton.experimental.gluon.language import NVMMASharedLayout
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from quantdock_cuda import block_kernel, block_operands
from quantdock_cuda.device import device_of
from quantdock_triton.encoding import claimed_rows
from quantdock_triton.launcher import Launcher, is_aligned
from quantdock_triton.matmul import NUM_COUNTERS
from quantdock_triton.tile import Form, Tile

STEP: int = block_operands.STEP.value
GROUP: int = block_kernel.GROUP.value
LAYOUT = NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=8, rank=2)
# Registers of a thread at launch, and of those of further multiplying groups, by how many groups
# multiply and how many programs a multiprocessor holds. The first group has what these leave.
_REGISTERS = {
    (1, 1): (255, 0),
    (1, 2): (128, 0),
    (1, 3): (80, 0),
    (1, 4): (64, 0),
    (2, 1): (168, 240),
    (2, 2): (80, 104),
}
# The widest products, by the same numbers, for which registers suffice.
_WIDTHS = {(1, 1): 128, (1, 2): 128, (1, 3): 64, (1, 4): 32, (2, 1): 128, (2, 2): 32}
_ROW_BYTES = 16  # that rows of a result are a multiple of, where the copy engine stores it
_WIDEST_COPY = 64  # columns of a result that the copy engine stores at once
_QUAD = 4  # rows that the scales of x are a multiple of


def registers_of(tile: Tile) -> tuple[int, int]:
    """Return the registers of a thread at launch, and of further groups that multiply."""
    return _REGISTERS[_heights(tile) * tile.slices, tile.resident]


def _heights(tile: Tile) -> int:
    """Return how many groups share the rows of the left operand."""
    return (tile.n if tile.swap else tile.m) // GROUP


def has_room(tile: Tile) -> bool:
    """Return whether the registers of a thread hold its results and two products."""
    width = tile.m if tile.swap else tile.n
    return width <= _WIDTHS.get((_heights(tile) * tile.slices, tile.resident), 0)


def scratch_bytes(tile: Tile) -> int:
    """Return the shared memory that scales, results and sums of groups take, beside the stages."""
    width = tile.m if tile.swap else tile.n
    scales = tile.stages * (tile.k // STEP) * (tile.m + 1) * 4
    results = GROUP * min(width, _WIDEST_COPY) * 2
    return scales + _heights(tile) * (results + GROUP * width * 4 * (tile.slices - 1))


def takes(form: Form, tile: Tile, k: int) -> bool:
    """Return whether the kernel can run this form, tile and number of columns."""
    return (
        (form.x_cols, form.weight_cols) == (STEP, STEP)
        and not form.weight_only
        and form.element == "fp8_e4m3"
        and form.weight_rows % tile.n == 0
        and tile.k in (STEP, 2 * STEP)
        and tile.stages % tile.slices == 0  # a slot is always the same group's
        and tile.stages * tile.k >= 2 * STEP * tile.slices  # two steps of each group
        and not (tile.swap and tile.tma)
        and (_heights(tile) * tile.slices, tile.resident) in _REGISTERS
        and k % 16 == 0
    )


def parts_of(tile: Tile, num_tiles: int, steps: int, room: int) -> int:
    """Return in how many parts the sum of so many steps is: no more than one for each program.

    Args:
        room: programs that the GPU holds at once.
    """
    if num_tiles * _heights(tile) > NUM_COUNTERS:
        return 1
    return max(min(tile.parts, steps, room // max(num_tiles, 1)), 1)


def result_layout(tile: Tile) -> NVMMASharedLayout:
    """Return the layout of 16-bit results on their way to the copy engine."""
    width = 2 * min(tile.n, _WIDEST_COPY)
    return NVMMASharedLayout(swizzle_byte_width=width, element_bitwidth=16, rank=2)


def stores_by_copy(tile: Tile, out: Tensor) -> bool:
    """Return whether the copy engine stores ``out`` [M, N]: if the tile asks for it, and it can."""
    size = out.element_size()
    return tile.tma and size == 2 and out.shape[1] * size % _ROW_BYTES == 0 and is_aligned(out)


def _quads(x_scale: Tensor) -> int:
    """Return from how many times four scales on those of the next group begin."""
    rows = x_scale.stride(1) if x_scale.shape[1] > 1 else x_scale.shape[0]
    assert rows % _QUAD == 0, "scales of x come in rows of four"
    return rows // _QUAD


def _described(out: Tensor, tile: Tile) -> TensorDescriptor:
    """Return what the copy engine must know of ``out`` [M, N] to store it."""
    block = [GROUP, min(tile.n, _WIDEST_COPY)]
    return TensorDescriptor(out, list(out.shape), [out.shape[1], 1], block, result_layout(tile))


class BlockMatmul:
    """``x @ weight.T`` of e4m3 codes in blocks, in one tiling; made by ``matmul``."""

    def __init__(self, form: Form, tile: Tile, n: int, k: int, has_bias: bool) -> None:
        self.n, self.k, self.tile = n, k, tile
        self._steps = -(-k // STEP)
        registers, others = registers_of(tile)
        options = {"num_warps": 4, "maxnreg": registers, "launch_pdl": True}
        same = replace(tile, parts=1)  # how many there are is no constant of the kernel
        self._launchers = {
            (split, copies): Launcher(
                block_kernel.block_matmul,
                (same, form.weight_rows, has_bias, split, copies, others),
                **options,
            )
            for split in (False, True)
            for copies in (False, tile.tma)
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

        Codes are aligned; the scales of x have columns side by side, one row after the other, and
        their rows are a multiple of 4.
        """
        assert x_scale is not None, "blocks of x have scales"
        tile, m, device = self.tile, out.shape[0], x.get_device()
        num_tiles = -(-m // tile.m) * -(-self.n // tile.n)
        room = tile.resident * device_of(device).num_sms
        parts = 1 if counters is None else parts_of(tile, num_tiles, self._steps, room)
        partial = None
        if parts > 1:
            shape = (num_tiles * parts, tile.m * tile.n)
            partial = torch.empty(shape, dtype=torch.float32, device=x.device)
        a, b = (
            TensorDescriptor(codes, [rows, self.k], [self.k, 1], [height, STEP], LAYOUT)
            for codes, rows, height in (
                (x, claimed_rows(x, m, tile.m), tile.m),
                (weight, self.n, tile.n),
            )
        )
        num_items, scale_row = num_tiles * parts, weight_scale.stride(0)
        copies = stores_by_copy(tile, out)
        result = _described(out, tile) if copies else out
        self._launchers[parts > 1, copies](
            (device, out.dtype, is_aligned(out), is_aligned(x_scale), is_aligned(weight_scale),
             None if bias is None else (bias.dtype, is_aligned(bias))),
            (min(num_items, room), 1),
            a, b, result,
            x_scale, weight_scale, bias, partial, counters,
            m, self.n, self._steps, _quads(x_scale), scale_row, parts, num_items,
        )  # fmt: skip


@lru_cache(maxsize=4096)
def matmul(form: Form, tile: Tile, n: int, k: int, has_bias: bool) -> BlockMatmul:
    """Return what multiplies by weights [n, k] of ``form`` in tiles of ``tile``."""
    return BlockMatmul(form, tile, n, k, has_bias)
