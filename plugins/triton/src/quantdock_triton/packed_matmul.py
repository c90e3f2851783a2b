"""Launching ``packed_matmul_kernel``: what is fixed for a layer and a tile is worked out once."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from math import gcd

import torch
from torch import Tensor
from triton.runtime import JITFunction

from quantdock_triton.launcher import ALIGNMENT, Launcher, is_aligned
from quantdock_triton.matmul import NUM_COUNTERS
from quantdock_triton.packed_layout import ROWS, WORD_BITS, Packing
from quantdock_triton.packed_matmul_kernel import packed_matmul, unpack_rows

# Triton's interpreter knows no machine code, and other devices have another.
_PTX = isinstance(packed_matmul, JITFunction) and torch.version.cuda is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedTile:
    """The tile of the result that one program computes, and how."""

    m: int  # rows of x
    n: int  # rows of the weight
    words: int  # of a row that a turn takes; at most the plane
    parts: int = 1  # programs that share the sum over K
    warps: int = 4
    stages: int = 4  # turns that are in flight
    folded: bool = False  # weights are scaled, in 16 bits, and not their sums


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedWeight:
    """The tensors of a packed weight, or those rows of it that one launch multiplies by.

    Shapes:
        words: int16 [rows of blocks, blocks, 64, plane]. scale: f32 or float16 [groups, N], N even
        where it is float16. zero: whole numbers, of the same shape and dtype; None: the middle of
        the codes. scale_words: of floats, int32
        (packed_scale_layout.py); their ``scale`` is one for each row, of its sum.
    """

    words: Tensor
    scale: Tensor
    zero: Tensor | None
    scale_words: Tensor | None = None
    first: int = 0  # row
    last: int  # row, exclusive

    def rows(self, first: int, last: int) -> PackedWeight:
        """Return some of the rows."""
        return replace(self, first=first, last=last)


def constants_of(packing: Packing, tile: PackedTile, k: int) -> tuple[object, ...]:
    """Return what kernels of this tiling are compiled for, from BITS to BLOCK_N."""
    per_group, run = groups_of(packing)
    return (
        packing.bits,
        packing.plane,
        min(tile.words, packing.plane),
        per_group,
        run,
        packing.middle,
        tile.folded,
        k % packing.columns == 0,
        _PTX,
        tile.m,
        tile.n,
    )


class PackedMatmul:
    """``x @ weight.T`` for weights of K columns in one packing, in one tiling; by ``matmul``."""

    def __init__(self, packing: Packing, tile: PackedTile, k: int) -> None:
        self.k, self._tile = k, tile
        self._steps = packing.blocks(1, k)[1]
        turns = self._steps * (packing.plane // min(tile.words, packing.plane))
        self._parts = max(min(tile.parts, turns), 1)
        constants = constants_of(packing, tile, k)
        options = {"num_warps": tile.warps, "num_stages": tile.stages}
        self._launchers = {
            split: Launcher(packed_matmul, (*constants, split), **options)
            for split in (False, True)
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

        Shapes:
            x: bfloat16 or float16 [M, K], M >= 1, columns side by side. bias: [N]. out: [M, N],
            contiguous. counters: int32 [NUM_COUNTERS], all 0, of this stream alone; None: sums are
            not divided.
        """
        tile, m = self._tile, x.shape[0]
        num_tiles = -(-m // tile.m) * -(-(weight.last - weight.first) // tile.n)
        parts = self._parts if counters is not None and num_tiles <= NUM_COUNTERS else 1
        partial = None
        if parts > 1:
            shape = (num_tiles * parts, tile.m * tile.n)
            partial = torch.empty(shape, dtype=torch.float32, device=x.device)
        scale, zero, stride = weight.scale, weight.zero, x.stride(0)
        self._launchers[parts > 1](
            (x.get_device(), x.dtype, out.dtype, x.data_ptr() % ALIGNMENT, stride % 16, stride == 1,
             is_aligned(weight.words), is_aligned(out), _kind(scale), _kind(zero), _kind(bias)),
            (num_tiles * parts, 1),
            x, weight.words, scale, zero, bias, out, partial, counters,
            m, weight.first, weight.last, self.k, self._steps, scale.shape[0], stride,
            scale.stride(0), out.stride(0), parts,
        )  # fmt: skip


class Unpack:
    """Rows of a packed weight of K columns as floats; made by ``unpack``."""

    def __init__(self, packing: Packing, k: int) -> None:
        self.k = k
        self._steps = packing.blocks(1, k)[1]
        per_group, _ = groups_of(packing)
        constants = (packing.bits, packing.plane, per_group, packing.middle, ROWS)
        self._launcher = Launcher(unpack_rows, constants, num_warps=8, num_stages=1)

    def __call__(self, weight: PackedWeight, out: Tensor) -> None:
        """Write rows ``first`` to ``last`` to ``out`` [rows, K], contiguous; there is one."""
        scale, zero = weight.scale, weight.zero
        self._launcher(
            (scale.get_device(), out.dtype, is_aligned(weight.words), is_aligned(out),
             _kind(scale), _kind(zero)),
            (-(-(weight.last - weight.first) // ROWS), self._steps),
            weight.words, scale, zero, out, weight.first, weight.last, self.k, self._steps,
            scale.shape[0], scale.stride(0),
        )  # fmt: skip


def groups_of(packing: Packing) -> tuple[int, int]:
    """Return the planes of a group (0: all), and how many neighbours in a block share one."""
    planes = WORD_BITS // packing.bits
    per_group = packing.group // packing.plane
    return per_group, gcd(per_group, planes)


def _kind(tensor: Tensor | None) -> tuple[torch.dtype, bool] | None:
    return None if tensor is None else (tensor.dtype, is_aligned(tensor))


@lru_cache(maxsize=4096)
def matmul(packing: Packing, tile: PackedTile, k: int) -> PackedMatmul:
    """Return what multiplies by weights of ``k`` columns in tiles of ``tile``."""
    return PackedMatmul(packing, tile, k)


@lru_cache(maxsize=4096)
def unpack(packing: Packing, k: int) -> Unpack:
    """Return what makes floats of weights of ``k`` columns."""
    return Unpack(packing, k)
