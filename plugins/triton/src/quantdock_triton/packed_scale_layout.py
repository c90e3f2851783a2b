"""Scales of codes of fp4_e2m1 as bytes that lie like the words of their codes (packed_layout.py).

A run of 32 columns, or of 16 where groups are no multiple of 32, has a byte. The bytes of a run at
each place of words are one int32, so that a thread has those of all places of a row at once; rows
of a block lie side by side.

A byte is what bfloat16 has of a scale times a power of two: of e8m0 the exponent, of e4m3 the
lowest five bits of it and the three highest of the fraction. So codes become numbers in one
product. A scale of 0 is 2^-23 there: codes in its group count at most 6 * 2^-23, not nothing.

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

from quantdock.errors import FormatError
from quantdock_triton.packed_layout import ROWS, Packing
from quantdock_triton.small_float_layout import bytes_of

KEPT = {"e4m3": 56, "e8m0": 62}  # the power of two of scales in bfloat16
_PLACES = 4  # codes of a word, and bytes of an int32
# Of f32, beside the fields of a byte: bits below them, and how much larger its own are.
_FIELDS = {"e4m3": (20, 104 << 3), "e8m0": (23, -KEPT["e8m0"])}


def unit_of(kind: str) -> float:
    """Return what sums are multiplied with: codes are 2^-126 too small where bfloat16 has them."""
    return float(2.0 ** (126 - KEPT[kind]))


def pack_scale_words(scale: Tensor, k: int, packing: Packing) -> Tensor:
    """Return the scales of groups as bytes.

    Shapes:
        scale: f32 [N, groups], at most 2^65. Returns int32 [rows of blocks, blocks, runs of a
        plane, 64].
    Raises:
        FormatError: a scale is no number of its kind, or has a sign.
    """
    stored = _bytes_of(scale, packing.scale)
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
    of_runs = stored.reshape(len(words) * ROWS, -1)[:n]
    groups = of_runs[:, :: packing.group // packing.run][:, : -(-k // packing.group)]
    below, more = _FIELDS[packing.scale]
    bits = (groups.to(torch.int32) + more) << below
    if packing.scale == "e4m3":
        return torch.where(groups == 0, 0, bits).view(torch.float32)
    # The smallest e8m0 number has no exponent in f32.
    return torch.where(bits == 0, 1 << below - 1, bits).view(torch.float32)


def _bytes_of(scale: Tensor, kind: str) -> Tensor:
    """Return what is stored of f32 scales, uint8."""
    bytes_of(scale, kind)  # raises where one is no number of the kind
    if bool(torch.signbit(scale).any()):
        raise FormatError(
            "A scale has a sign.",
            why=["the kernel keeps exponents and fractions of scales"],
            todo="Set QUANTDOCK_KERNEL=cuda_fp4a16 for one that keeps signs too.",
        )
    below, more = _FIELDS[kind]
    fields = (scale.contiguous().view(torch.int32) >> below) - more
    return torch.where(scale == 0, 0, fields).to(torch.uint8)
