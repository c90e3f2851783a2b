"""Launching ``packed_kernel``: what is fixed for a layer and a tile is worked out once."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

import torch
from torch import Tensor
from triton.experimental.gluon.language import NVMMASharedLayout
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from quantdock_cuda.packed_form import PackedForm
from quantdock_cuda.packed_kernel import packed_matmul
from quantdock_triton.launcher import ALIGNMENT, Launcher, is_aligned
from quantdock_triton.matmul import NUM_COUNTERS
from quantdock_triton.packed_layout import ROWS, WORD_BITS, Packing
from quantdock_triton.packed_matmul import PackedWeight

# Registers of a thread at launch, and of those of a second multiplying group, by how many groups
# multiply and how many programs a multiprocessor holds. The first group has what these leave.
_REGISTERS = {
    (1, 1): (255, 0),
    (1, 2): (128, 0),
    (1, 3): (80, 0),
    (1, 4): (64, 0),
    (2, 1): (168, 240),
    (2, 2): (80, 104),
    (3, 1): (128, 152),
}
_SCRATCH_BYTES = 2432  # for each group, beside what copies fill


@dataclass(frozen=True, slots=True, kw_only=True)
class RolesTile:
    """The tile of the result that one program computes, and how."""

    m: int  # rows of x
    groups: int = 1  # of 64 rows of the weight, by four warps each
    parts: int = 1  # programs that share the sum of a tile of the last round, at most
    stages: int = 4  # steps whose words are in flight
    taken: int = 1  # planes of a step that are one copy of x
    x_stages: int = 4  # such copies that are in flight
    resident: int = 1  # programs of a multiprocessor
    folded: bool = False  # weights are scaled, in 16 bits, and not their sums
    joined: int = 1  # parts that a program adds up like programs that share a sum, where none do

    def shared_bytes(self, packing: Packing) -> int:
        """Return the shared memory that a program takes at most: words, x, scales and barriers."""
        words = self.stages * self.groups * ROWS
        stages = (words + self.x_stages * self.taken * self.m) * packing.plane * 2
        run = form_of(packing, self).run
        scales = WORD_BITS // packing.bits // run * 2  # and zero points
        rows = self.groups * ROWS if packing.is_float else form_of(packing, self).factor_rows
        factors = (self.stages + 1) * (packing.pieces or scales) * rows * 4
        return stages + factors + _SCRATCH_BYTES * self.groups


@dataclass(frozen=True, slots=True, kw_only=True)
class RolesForm(PackedForm):
    """What the kernel is compiled for: a packing, a tile, and in how many parts sums are."""

    m: int
    groups: int
    stages: int
    taken: int
    x_stages: int
    split: bool = False  # some sums are shared
    joined: int = 1
    is_plain: bool = False  # words lie like the weight, whose neighbouring columns they hold
    scale_rows: int = 1  # rows of the weight that share a scale
    tail: int = 0  # planes of the last step, where K ends before the others; 0: all

    @property
    def x_turns(self) -> int:
        """Return how many copies of x a step has."""
        return self.planes // self.taken

    @property
    def skipped(self) -> int:
        """Return how many of them the last step does not."""
        return self.x_turns - -(-self.tail // self.taken) if self.tail else 0

    @property
    def apart(self) -> bool:
        """Return whether warps release slots without waiting for each other: with few rows of x.

        With more it is no faster, or slower.
        """
        return self.m == 16

    @property
    def factor_rows(self) -> int:
        """Return the rows of the weight whose scales are copied at once: a power of two."""
        return ROWS << (self.groups - 1).bit_length()


def form_of(packing: Packing, tile: RolesTile) -> RolesForm:
    """Return what the kernel is compiled for; sums that are not divided."""
    per_group = 0 if packing.is_float else packing.group // packing.plane
    return RolesForm(
        bits=packing.bits,
        is_float=packing.is_float,
        scale=packing.scale,
        pieces=packing.pieces,
        plane=packing.plane,
        per_group=per_group,
        m=tile.m,
        groups=tile.groups,
        stages=tile.stages,
        taken=tile.taken,
        x_stages=tile.x_stages,
        folded=tile.folded and per_group > 0,
        joined=tile.joined,
    )


def layout_of(plane: int) -> NVMMASharedLayout:
    """Return how words and x lie in shared memory, in planes of so many columns."""
    return NVMMASharedLayout(swizzle_byte_width=2 * plane, element_bitwidth=WORD_BITS, rank=2)


def registers_of(tile: RolesTile) -> tuple[int, int]:
    """Return the registers of a thread at launch, and of a group beyond the first."""
    return _REGISTERS[tile.groups, tile.resident]


def sharers_of(tile: RolesTile, num_tiles: int, steps: int, most: int) -> int:
    """Return how many programs share the sums of the tiles of the last round; 0: none does.

    Where sums have one order, all are in as many parts, or none is.

    Args:
        steps: of a sum.
        most: programs that run at once.
    """
    rest = num_tiles % most
    sharers = min(rest * min(tile.parts, steps), most)
    is_uneven = tile.joined > 1 and sharers < rest * tile.joined
    return 0 if is_uneven or sharers <= rest else sharers


class RolesMatmul:
    """``x @ weight.T`` for weights of K columns in one form, in one tiling; by ``matmul``."""

    def __init__(self, form: RolesForm, tile: RolesTile, k: int, num_sms: int) -> None:
        self.k, self._form, self._tile = k, form, tile
        self._most = num_sms * tile.resident
        self._steps = -(-k // (form.planes * form.plane))
        self._layout = layout_of(form.plane)
        registers, others = registers_of(tile)
        options = {"num_warps": 4, "maxnreg": registers, "launch_pdl": True}
        self._launchers = {
            split: Launcher(packed_matmul, (made, others), **options)
            for split, made in ((False, form), (True, replace(form, split=True)))
        }

    def __call__(
        self,
        x: Tensor,
        weight: PackedWeight,
        bias: Tensor | None,
        out: Tensor,
        counters: Tensor | None = None,
    ) -> None:
        """Write the product to the columns ``first`` to ``last`` of ``out``.

        Shapes and arguments as of ``quantdock_triton.packed_matmul``; x that the copy engine cannot
        read is copied.
        """
        tile, m = self._tile, x.shape[0]
        blocks = -(-weight.last // ROWS) - weight.first // ROWS
        num_tiles = -(-m // tile.m) * -(-blocks // tile.groups)
        sharers = sharers_of(tile, num_tiles, self._steps, self._most)
        shared = num_tiles % self._most
        if counters is None or shared * tile.groups > NUM_COUNTERS:
            sharers = 0
        shared = shared if sharers else 0
        partial = None
        if sharers:
            shape = (sharers * 2, tile.m * tile.groups * ROWS)
            partial = torch.empty(shape, dtype=torch.float32, device=x.device)
        scale, zero, stored = weight.scale, weight.zero, weight.scale_words
        rows, groups = (0, 1) if self._form.is_plain else (1, 0)
        copied = 2 if scale.dtype == torch.float16 and self._form.per_group > 0 else 1
        self._launchers[sharers > 0](
            (x.get_device(), x.dtype, out.dtype, scale.dtype, is_aligned(out), is_aligned(scale),
             *map(_kind, (weight.first, weight.last, out.stride(0))),
             None if zero is None else is_aligned(zero), is_aligned(stored),
             None if bias is None else (bias.dtype, is_aligned(bias))),
            (min(num_tiles, self._most) if num_tiles > shared else sharers, 1),
            *self._described(weight.words, x), scale, zero, stored, bias, out, partial, counters,
            m, weight.first, weight.last, self._steps, num_tiles - shared, sharers,
            shared * self._steps, scale.shape[groups],
            scale.stride(groups) // copied, scale.stride(rows) if scale.shape[rows] > 1 else 0,
            out.stride(0),
        )  # fmt: skip

    def _described(self, words: Tensor, x: Tensor) -> tuple[TensorDescriptor, TensorDescriptor]:
        """Return words and x for the copy engine."""
        x = readable(x)
        plane, box = self._form.plane, [self._tile.m, self._tile.taken * self._form.plane]
        if not self._form.is_plain:
            words = words.view(-1, plane)
        return (
            TensorDescriptor.from_tensor(words, [ROWS, plane], self._layout),
            TensorDescriptor(x, [x.shape[0], self.k], [x.stride(0), 1], box, self._layout),
        )


def readable(x: Tensor) -> Tensor:
    """Return x as the copy engine can read it: as it is, or a copy."""
    if x.data_ptr() % ALIGNMENT or x.stride(0) * x.element_size() % ALIGNMENT:
        return x.clone(memory_format=torch.contiguous_format)
    return x


def _kind(number: int) -> tuple[bool, bool]:
    """Return what Triton specializes an integer for."""
    return number % 16 == 0, number == 1


@lru_cache(maxsize=4096)
def matmul(packing: Packing, tile: RolesTile, k: int, num_sms: int) -> RolesMatmul:
    """Return what multiplies by weights of ``k`` columns in tiles of ``tile``."""
    return RolesMatmul(form_of(packing, tile), tile, k, num_sms)
