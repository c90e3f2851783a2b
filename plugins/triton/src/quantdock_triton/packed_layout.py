"""Codes of at most eight bits as 16-bit words that a GPU unpacks with few instructions.

A word holds four codes of at most 4 bits, or two of at most 8, of one row; they lie ``plane``
columns apart, so that a shift and a mask of neighbouring words give neighbouring columns. Words lie
in blocks of 64 rows by ``plane`` words, each read from beginning to end, and a row of 64 rows has
its blocks one after the other. Edges are filled with zeros.

Codes of fp4_e2m1 are spread over a word as in small_float_layout.py, so that few instructions put
them where bfloat16 has them; their scales are bytes (packed_scale_layout.py).

>>> import torch
>>> packing = Packing(bits=4, plane=32, group=32)
>>> codes = torch.arange(128, dtype=torch.uint8)[None] // 32 + 1
>>> words = pack_words(codes, packing)
>>> list(words.shape), hex(words[0, 0, 0, 0])
([1, 1, 64, 32], '0x4321')
>>> torch.equal(unpack_words(words, 1, 128, packing), codes)
True
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from quantdock.formats import ELEMENTS, QuantSpec
from quantdock_triton.small_float_layout import PLACES, Pieces, put_at, taken_from

ROWS = 64  # of a block
PLANES = (64, 32)  # columns of a plane, the wider the better; a group is a multiple of them
WORD_BITS = 16
_MOST_FILLED = 1.1  # columns in wide planes beside those in narrow ones; wide ones are faster


@dataclass(frozen=True, slots=True, kw_only=True)
class Packing:
    """How the codes of one weight lie in words."""

    bits: int  # of a code: 4 or 8
    plane: int  # neighbouring columns whose codes lie at one place of their words
    # Columns that share a scale, a multiple of ``plane``, or of 16 where scales are bytes; 0: all.
    group: int
    scale: str = "f32"  # "e4m3" or "e8m0": bytes, and codes are of fp4_e2m1

    @property
    def is_float(self) -> bool:
        """Return whether codes are of fp4_e2m1."""
        return self.scale != "f32"

    @property
    def run(self) -> int:
        """Return the columns that a byte of a scale is for."""
        return 32 if self.group % 32 == 0 else 16

    @property
    def pieces(self) -> int:
        """Return how many bytes of scales a plane of a row has; 0: scales are no bytes."""
        return self.plane // self.run if self.is_float else 0

    @property
    def columns(self) -> int:
        """Return the columns of a block."""
        return self.plane * WORD_BITS // self.bits

    @property
    def middle(self) -> int:
        """Return the zero point of codes that were signed."""
        return 1 << self.bits - 1

    def blocks(self, n: int, k: int) -> tuple[int, int]:
        """Return how many blocks a weight [n, k] is high and wide."""
        return -(-n // ROWS), -(-k // self.columns)


def packing_of(spec: QuantSpec, k: int) -> Packing:
    """Return how codes of ``spec`` are packed; its groups are multiples of 32 columns."""
    group = 0 if spec.cols is None or spec.cols >= k else spec.cols
    plane = next(p for p in PLANES if group % p == 0)
    return Packing(bits=4 if ELEMENTS[spec.element].bits <= 4 else 8, plane=plane, group=group)


def float_packing_of(spec: QuantSpec, k: int) -> Packing:
    """Return how codes of fp4_e2m1 are packed: in wide planes, unless they fill up a tenth more."""
    assert spec.cols is not None, "its groups are multiples of 16 columns"
    wide, narrow = (
        Packing(bits=4, plane=plane, group=spec.cols, scale=spec.scale) for plane in PLANES
    )
    columns, fewest = (p.blocks(1, k)[1] * p.columns for p in (wide, narrow))
    return wide if columns <= _MOST_FILLED * fewest else narrow


def _pieces(packing: Packing) -> Pieces:
    """Return the pieces of a code at each place of a word: its bits, and how far to the left."""
    if packing.is_float:
        return PLACES
    mask = (1 << packing.bits) - 1
    return tuple(((mask, left),) for left in range(0, WORD_BITS, packing.bits))


def pack_words(codes: Tensor, packing: Packing) -> Tensor:
    """Return ``codes`` in words.

    Shapes:
        codes: uint8 [N, K]. Returns int16 [rows of blocks, blocks, 64, plane].
    """
    high, wide = packing.blocks(*codes.shape)
    filled = pad(
        codes, (0, wide * packing.columns - codes.shape[1], 0, high * ROWS - codes.shape[0])
    )
    parts = filled.view(high, ROWS, wide, -1, packing.plane).permute(3, 0, 2, 1, 4)
    return put_at(parts.unbind(), _pieces(packing))


def unpack_words(words: Tensor, n: int, k: int, packing: Packing) -> Tensor:
    """Return the codes, uint8 [n, k], that ``pack_words`` packed."""
    high, _ = packing.blocks(n, k)
    parts = torch.stack(taken_from(words, _pieces(packing)))
    return parts.permute(1, 3, 2, 0, 4).reshape(high * ROWS, -1)[:n, :k].contiguous()
