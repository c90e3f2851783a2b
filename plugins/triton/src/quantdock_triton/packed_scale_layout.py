"""Scales of codes of fp4_e2m1 as bytes that lie like the words of their codes (packed_layout.py).

A run of 32 columns, or of 16 where groups are no multiple of 32, has a byte. The bytes of a run at
each place of words are one int32, so that a thread has those of all places of a row at once; rows
of a block lie side by side.

Bytes of e4m3 are as in the file. Those of e8m0, exponents, are ``KEPT`` larger: as exponents of
bfloat16 they are scales times 2^62, by which codes become numbers in one product.

>>> import torch
>>> from quantdock_triton.packed_layout import Packing
>>> packing = Packing(bits=4, plane=32, group=32, scale="e8m0")
>>> scale = torch.tensor([[1.0, 2.0, 4.0]])  # of 96 columns
>>> words = pack_scale_words(scale, 96, packing)
>>> list(words.shape), hex(words[0, 0, 0, 0])
([1, 1, 1, 64], '0xbfbebd')
>>> torch.equal(unpack_scale_words(words, 1, 96, packing), scale)
True
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from quantdock_triton.packed_layout import ROWS, Packing
from quantdock_triton.small_float_layout import bytes_of, scales_of

KEPT = 62  # the power of two of scales in bfloat16
# What sums are multiplied with, as scales hold 2^62 and codes, where bfloat16 has them, 2^-126.
UNIT = 2.0 ** (126 - KEPT)
_PLACES = 4  # codes of a word, and bytes of an int32
_ABOVE = {"e4m3": 0, "e8m0": KEPT}


def pack_scale_words(scale: Tensor, k: int, packing: Packing) -> Tensor:
    """Return the scales of groups as bytes.

    Shapes:
        scale: f32 [N, groups], at most 2^65. Returns int32 [rows of blocks, blocks, runs of a
        plane, 64].
    Raises:
        FormatError: a scale is no number of its kind.
    """
    stored = bytes_of(scale, packing.scale) + _ABOVE[packing.scale]
    high, wide = packing.blocks(len(scale), k)
    of_runs = stored.repeat_interleave(packing.group // packing.run, dim=1)
    of_runs = of_runs[:, : -(-k // packing.run)]
    missing = wide * _PLACES * packing.pieces - of_runs.shape[1]
    of_runs = pad(of_runs, (0, missing, 0, high * ROWS - len(scale)))
    of_blocks = of_runs.view(high, ROWS, wide, _PLACES, packing.pieces)
    stored = of_blocks.permute(0, 2, 4, 1, 3).reshape(-1)
    return stored.view(torch.int32).view(high, wide, packing.pieces, ROWS)


def unpack_scale_words(words: Tensor, n: int, k: int, packing: Packing) -> Tensor:
    """Return the f32 scales [n, groups] that ``pack_scale_words`` packed."""
    stored = words.unsqueeze(-1).view(torch.uint8).permute(0, 3, 1, 4, 2)
    of_runs = stored.reshape(len(words) * ROWS, -1)[:n] - _ABOVE[packing.scale]
    groups = of_runs[:, :: packing.group // packing.run][:, : -(-k // packing.group)]
    return scales_of(groups.contiguous(), packing.scale)
