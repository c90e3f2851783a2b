"""Launching ``packed_stream_kernel``: what is fixed for a layer and a tile is worked out once."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import ceil

import torch
from torch import Tensor

from quantdock_cuda.packed_form import PackedForm
from quantdock_cuda.packed_stream_kernel import packed_stream
from quantdock_triton.launcher import ALIGNMENT, Launcher, is_aligned
from quantdock_triton.matmul import NUM_COUNTERS
from quantdock_triton.packed_layout import Packing
from quantdock_triton.packed_matmul import PackedWeight

_WIDE = 16  # values, of which the distance of rows of x is a multiple for reads of 16 bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamTile:
    """The tile of the result that one program computes, and how."""

    rows: int  # of the weight
    tokens: int  # rows of x, at least 8
    warps: int
    across: int = 1  # warps that have other rows of the weight; the others share the steps along K
    x_rows: int  # rows of x that are read: as many, or one
    keeps_x: bool = False  # x is in shared memory before the first product; else it comes by cache
    registers: int = 128  # of a thread, at most
    parts: int = 1  # programs that share the sum over K
    early: bool = False  # programs start, and read their first words, while the kernel before ends
    ahead: int = 0  # turns whose words are asked for then, beyond the first


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamForm(PackedForm):
    """What the kernel is compiled for: a packing, a tile, and what is whole."""

    rows: int
    tokens: int
    warps: int
    across: int
    x_rows: int
    keeps_x: bool
    turns: int  # whose x is kept
    whole_steps: bool  # each warp has as many steps, and K ends with one
    whole_rows: bool  # tiles end with the rows that are wanted
    split: bool
    early: bool
    ahead: int

    @property
    def shares(self) -> int:
        """Return how many warps share the steps of a program."""
        return self.warps // self.across


def form_of(packing: Packing, tile: StreamTile, k: int, parts: int, whole_rows: bool) -> StreamForm:
    """Return what the kernel is compiled for."""
    steps, shares = packing.blocks(1, k)[1], tile.warps // tile.across
    turns = ceil(ceil(steps / parts) / shares)
    return StreamForm(
        bits=packing.bits,
        plane=packing.plane,
        per_group=0 if packing.is_float else packing.group // packing.plane,
        is_float=packing.is_float,
        scale=packing.scale,
        pieces=packing.pieces,
        rows=tile.rows,
        tokens=tile.tokens,
        warps=tile.warps,
        across=tile.across,
        x_rows=tile.x_rows,
        keeps_x=tile.keeps_x,
        turns=turns if tile.keeps_x else 0,
        whole_steps=k % packing.columns == 0 and steps % (parts * shares) == 0,
        whole_rows=whole_rows,
        split=parts > 1,
        early=tile.early,
        ahead=tile.ahead,
    )


class StreamMatmul:
    """``x @ weight.T`` for weights of K columns in one packing, in one tiling; by ``matmul``."""

    def __init__(self, packing: Packing, tile: StreamTile, k: int) -> None:
        self.k, self._packing, self._tile = k, packing, tile
        self._steps = packing.blocks(1, k)[1]
        self._launchers: dict[tuple[int, bool], Launcher] = {}

    def __call__(
        self,
        x: Tensor,
        weight: PackedWeight,
        bias: Tensor | None,
        out: Tensor,
        counters: Tensor | None = None,
    ) -> None:
        """Write the product to the columns ``first`` to ``last`` of ``out``.

        Shapes and arguments as of ``quantdock_triton.packed_matmul``; x whose rows cannot be read
        16 bytes at once is copied.
        """
        x = readable(x)
        tile, m = self._tile, x.shape[0]
        origin = weight.first // tile.rows * tile.rows
        num_tiles = -(-m // tile.tokens) * -(-(weight.last - origin) // tile.rows)
        parts = tile.parts if counters is not None and num_tiles <= NUM_COUNTERS else 1
        partial = None
        if parts > 1:
            shape = (num_tiles * parts, tile.tokens * tile.rows)
            partial = torch.empty(shape, dtype=torch.float32, device=x.device)
        scale, zero, stored = weight.scale, weight.zero, weight.scale_words
        self._launcher(parts, weight.last % tile.rows == 0)(
            (x.get_device(), x.dtype, out.dtype, scale.dtype, is_aligned(out), is_aligned(scale),
             None if zero is None else is_aligned(zero), is_aligned(stored),
             None if bias is None else (bias.dtype, is_aligned(bias))),
            (num_tiles * parts, 1),
            weight.words, x, scale, zero, stored, bias, out, partial,
            counters if parts > 1 else None,
            m, weight.first, weight.last, self.k, self._steps, scale.shape[0], x.stride(0),
            scale.stride(0), out.stride(0), parts,
        )  # fmt: skip

    def _launcher(self, parts: int, whole_rows: bool) -> Launcher:
        found = self._launchers.get((parts, whole_rows))
        if found is None:
            form = form_of(self._packing, self._tile, self.k, parts, whole_rows)
            options = {"num_warps": self._tile.warps, "maxnreg": self._tile.registers}
            if self._tile.early:
                options["launch_pdl"] = True
            found = Launcher(packed_stream, (form,), **options)
            self._launchers[parts, whole_rows] = found
        return found


def readable(x: Tensor) -> Tensor:
    """Return x as rows can be read 16 bytes at once: as it is, or a copy."""
    if x.data_ptr() % ALIGNMENT or x.stride(0) % _WIDE:
        return x.clone(memory_format=torch.contiguous_format)
    return x


@lru_cache(maxsize=4096)
def matmul(packing: Packing, tile: StreamTile, k: int) -> StreamMatmul:
    """Return what multiplies by weights of ``k`` columns in tiles of ``tile``."""
    return StreamMatmul(packing, tile, k)
