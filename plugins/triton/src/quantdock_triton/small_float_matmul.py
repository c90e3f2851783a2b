"""Launching ``small_float_kernel``: what is fixed for a layer and a tile is worked out once."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

import torch
from torch import Tensor
from triton.runtime import JITFunction

from quantdock.formats import ELEMENTS, QuantSpec
from quantdock_triton.launcher import Launcher, is_aligned
from quantdock_triton.matmul import NUM_COUNTERS
from quantdock_triton.small_float_kernel import small_float_matmul, widen_rows
from quantdock_triton.small_float_layout import RUNS, FloatPacking

# Triton's interpreter knows no machine code, and other devices have another.
_PTX = isinstance(small_float_matmul, JITFunction) and torch.version.cuda is not None
_BIAS = 127  # of f32
_HALF_BYTES = 2  # of a word, and of a value of x
_HEIGHT = 16  # rows that a program widens


@dataclass(frozen=True, slots=True, kw_only=True)
class SmallFloat:
    """How the codes of one weight are read."""

    element: str
    group: int  # columns that share a scale, a multiple of 16
    scale: str  # "e4m3" or "e8m0"

    @property
    def packing(self) -> FloatPacking:
        """Return how the codes and scales lie."""
        return FloatPacking(bits=ELEMENTS[self.element].bits, group=self.group)

    @property
    def constants(self) -> tuple[object, ...]:
        """Return what the kernels take as constants."""
        element, packing = ELEMENTS[self.element], self.packing
        bias = 1 - element.lowest_exponent
        unit = 2.0 ** (_BIAS - bias)
        fraction = element.fraction_bits
        return packing.bits, packing.places, fraction, unit, packing.run, self.scale == "e8m0"


def small_float_of(spec: QuantSpec) -> SmallFloat:
    """Return how codes of ``spec``, which has groups of columns, are read."""
    assert spec.cols is not None, "the kernels take groups"
    return SmallFloat(element=spec.element, group=spec.cols, scale=spec.scale)


@dataclass(frozen=True, slots=True, kw_only=True)
class FloatTile:
    """The tile of the result that one program computes, and how."""

    m: int  # rows of x
    n: int  # rows of the weight
    parts: int = 1  # programs that share the sum over K
    warps: int = 4
    stages: int = 4

    def shared_bytes(self, packing: FloatPacking) -> int:
        """Return the most shared memory that the stages take; that of words is one stage less."""
        words = RUNS * packing.run
        x_bytes = packing.places * self.m * words * _HALF_BYTES
        return (self.stages - 1) * self.n * words * _HALF_BYTES + self.stages * x_bytes

    def fitted(self, packing: FloatPacking, most_bytes: int) -> FloatTile:
        """Return this tile with as many of its stages, or rows of x, as the memory holds."""
        tile = self
        while tile.shared_bytes(packing) > most_bytes and tile.stages > 1:
            tile = replace(tile, stages=tile.stages - 1)
        while tile.shared_bytes(packing) > most_bytes and tile.m > 16:
            tile = replace(tile, m=tile.m // 2)
        return tile


@dataclass(frozen=True, slots=True, kw_only=True)
class FloatWeight:
    """The tensors of a weight, or those rows of it that are wanted.

    Shapes:
        words: int16 [N, words]; scale: uint8 [N, scales of runs] (small_float_layout). second: f32
        [N], or None.
    """

    words: Tensor
    scale: Tensor
    second: Tensor | None
    first: int = 0  # row
    last: int  # row, exclusive

    def rows(self, first: int, last: int) -> FloatWeight:
        """Return some of the rows."""
        return replace(self, first=first, last=last)


class FloatMatmul:
    """``x @ weight.T`` for weights of K columns, in one tiling; made by ``matmul``."""

    def __init__(self, kind: SmallFloat, tile: FloatTile, k: int) -> None:
        self.k, self._tile = k, tile
        options = {"num_warps": tile.warps, "num_stages": tile.stages}
        constants = (*kind.constants, _PTX, tile.m, tile.n)
        self._turn = RUNS * kind.packing.run
        self._launchers = {
            split: Launcher(small_float_matmul, (*constants, split), **options)
            for split in (False, True)
        }

    def __call__(
        self,
        x: Tensor,
        weight: FloatWeight,
        bias: Tensor | None,
        out: Tensor,
        counters: Tensor | None = None,
    ) -> None:
        """Write the product with all rows of the weight to ``out``.

        Shapes:
            x: bfloat16 or float16 [M, K], M >= 1, columns side by side. bias: [N]. out: [M, N],
            contiguous. counters: int32 [NUM_COUNTERS], all 0, of this stream alone; None: sums are
            not divided.
        """
        tile, m, (n, num_words) = self._tile, x.shape[0], weight.words.shape
        num_tiles = -(-m // tile.m) * -(-n // tile.n)
        parts = max(min(tile.parts, -(-num_words // self._turn)), 1)
        if counters is None or num_tiles > NUM_COUNTERS:
            parts = 1
        partial = None
        if parts > 1:
            shape = (num_tiles * parts, tile.m * tile.n)
            partial = torch.empty(shape, dtype=torch.float32, device=x.device)
        words, scale, second, stride = weight.words, weight.scale, weight.second, x.stride(0)
        self._launchers[parts > 1](
            (x.get_device(), x.dtype, out.dtype, is_aligned(x), stride % 16, stride == 1,
             is_aligned(words), is_aligned(scale), is_aligned(out), _kind(second), _kind(bias)),
            (num_tiles * parts, 1),
            x, words, scale, second, bias, out, partial, counters,
            m, n, self.k, stride, num_words, scale.shape[1], n, parts,
        )  # fmt: skip


class Widen:
    """Rows of a weight of K columns as floats; made by ``widen``."""

    def __init__(self, kind: SmallFloat, k: int) -> None:
        self.k = k
        self._launcher = Launcher(widen_rows, (*kind.constants, _HEIGHT), num_warps=4)
        self._turn = RUNS * kind.packing.run

    def __call__(self, weight: FloatWeight, out: Tensor) -> None:
        """Write rows ``first`` to ``last`` to ``out`` [rows, K], contiguous; there is one."""
        words, scale, second = weight.words, weight.scale, weight.second
        num_words = words.shape[1]
        self._launcher(
            (words.get_device(), out.dtype, is_aligned(out), is_aligned(words), is_aligned(scale),
             _kind(second)),
            (-(-(weight.last - weight.first) // _HEIGHT), -(-num_words // self._turn)),
            words, scale, second, out, weight.first, weight.last, self.k, num_words, scale.shape[1],
        )  # fmt: skip


def _kind(tensor: Tensor | None) -> tuple[torch.dtype, bool] | None:
    return None if tensor is None else (tensor.dtype, is_aligned(tensor))


@lru_cache(maxsize=4096)
def matmul(kind: SmallFloat, tile: FloatTile, k: int) -> FloatMatmul:
    """Return what multiplies by weights of ``k`` columns in tiles of ``tile``."""
    return FloatMatmul(kind, tile, k)


@lru_cache(maxsize=4096)
def widen(kind: SmallFloat, k: int) -> Widen:
    """Return what makes floats of weights of ``k`` columns."""
    return Widen(kind, k)
