"""Codes of 4 and 6 bits as 16-bit words, and their scales as bytes, so that a GPU unpacks little.

A word holds four codes of 4 bits, or two of 6, that lie a run apart: neighbouring words have
neighbouring columns at each place, and a run of them has one scale. A run is 32 columns, or 16
where groups are no multiple of 32. The scales of four runs' words stand together, those of one
place side by side; they stay what the file has, e4m3 or e8m0. Edges are filled with zeros.

Of codes of 4 bits, sign and magnitude lie apart as they do in bfloat16: one shift puts those of any
of the first three places where a mask takes them as a number. The last has the bits that are left.

>>> import torch
>>> packing = FloatPacking(bits=4, group=16)
>>> codes = torch.arange(64, dtype=torch.uint8)[None] // 16 + 1
>>> words = pack_runs(codes, packing)
>>> list(words.shape), hex(words[0, 0])
([1, 16], '0x2053')
>>> torch.equal(unpack_runs(words, 64, packing), codes)
True
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from quantdock.errors import FormatError

WORD_BITS = 16
Pieces = tuple[tuple[tuple[int, int], ...], ...]  # of each place: (bits of the code, to the left)
# Of a code of 4 bits, at each place of a word: pieces as (bits of the code, bits to the left).
PLACES: Pieces = (
    ((8, 12), (7, 6)),
    ((8, 9), (7, 3)),
    ((8, 6), (7, 0)),
    ((8, 11), (4, 11), (3, 10)),
)
RUNS = 4  # of words, whose scales stand together
MOST_SCALE = 2.0**65  # that small_float_kernel multiplies codes by exactly
_SCALES = {"e4m3": torch.float8_e4m3fn, "e8m0": torch.float8_e8m0fnu}


@dataclass(frozen=True, slots=True, kw_only=True)
class FloatPacking:
    """How the codes and scales of one weight lie."""

    bits: int  # of a code: 4 or 6
    group: int  # columns that share a scale, a multiple of 16

    @property
    def run(self) -> int:
        """Return the neighbouring columns that lie at one place of neighbouring words."""
        return 32 if self.group % 32 == 0 else 16

    @property
    def places(self) -> int:
        """Return the codes of a word."""
        return WORD_BITS // self.place_bits

    @property
    def place_bits(self) -> int:
        """Return the bits of a word that a code takes."""
        return 4 if self.bits <= 4 else 8


def pack_runs(codes: Tensor, packing: FloatPacking) -> Tensor:
    """Return ``codes``, uint8 [N, K], as int16 words [N, K / codes of a word]; K is filled up."""
    n, k = codes.shape
    runs = pad(codes, (0, -k % (packing.run * packing.places)))
    runs = runs.view(n, -1, packing.places, packing.run).to(torch.int16)
    return put_at(runs.unbind(2), _pieces(packing)).reshape(n, -1).contiguous()


def unpack_runs(words: Tensor, k: int, packing: FloatPacking) -> Tensor:
    """Return the codes, uint8 [N, k], that ``pack_runs`` packed."""
    codes = taken_from(words.view(len(words), -1, packing.run), _pieces(packing))
    return torch.stack(codes, dim=2).reshape(len(words), -1)[:, :k].contiguous()


def put_at(parts: Sequence[Tensor], places: Pieces) -> Tensor:
    """Return words, int16, that hold the codes of each of ``parts`` at its place."""
    words = torch.zeros(parts[0].shape, dtype=torch.int16, device=parts[0].device)
    for part, pieces in zip(parts, places, strict=True):
        for bits, left in pieces:
            words |= (part.to(torch.int16) & bits) << left
    return words


def taken_from(words: Tensor, places: Pieces) -> list[Tensor]:
    """Return the codes, uint8, at each place of ``words``."""
    codes = []
    for pieces in places:
        found = torch.zeros_like(words)
        for bits, left in pieces:
            found |= words >> left & bits
        codes.append(found.to(torch.uint8))
    return codes


def _pieces(packing: FloatPacking) -> Pieces:
    """Return the pieces of a code at each place of a word, as in ``PLACES``."""
    if packing.place_bits == 4:
        return PLACES
    mask = (1 << packing.place_bits) - 1
    return tuple(((mask, left),) for left in range(0, WORD_BITS, packing.place_bits))


def pack_scale(scale: Tensor, kind: str, k: int, packing: FloatPacking) -> Tensor:
    """Return f32 ``scale`` [N, groups] as bytes of its kind, "e4m3" or "e8m0".

    Shapes:
        Returns uint8 [N, turns * codes of a word * 4]: the scale of each run of columns.
    Raises:
        FormatError: a scale is no number of that kind.
    """
    stored = bytes_of(scale, kind)
    n, places = len(scale), packing.places
    of_runs = stored.repeat_interleave(packing.group // packing.run, dim=1)
    of_runs = of_runs[:, : -(-k // packing.run)]
    of_runs = pad(of_runs, (0, -of_runs.shape[1] % (RUNS * places)))
    return of_runs.view(n, -1, RUNS, places).transpose(2, 3).reshape(n, -1).contiguous()


def unpack_scale(stored: Tensor, kind: str, k: int, packing: FloatPacking) -> Tensor:
    """Return the f32 scales [N, groups] that ``pack_scale`` packed."""
    of_runs = stored.view(len(stored), -1, packing.places, RUNS).transpose(2, 3)
    groups = of_runs.reshape(len(stored), -1)[:, :: packing.group // packing.run]
    groups = groups[:, : -(-k // packing.group)].contiguous()
    return scales_of(groups, kind)


def bytes_of(scale: Tensor, kind: str) -> Tensor:
    """Return f32 scales as uint8, numbers of a kind.

    Raises:
        FormatError: a scale is no number of that kind.
    """
    stored = scale.to(_SCALES[kind])
    wrong = stored.to(torch.float32) != scale
    if bool(wrong.any()):
        raise FormatError(
            f"{int(wrong.sum())} of {scale.numel()} scales are no {kind} numbers.",
            why=[f"the first is {float(scale[wrong][0])!r}"],
            todo="Set QUANTDOCK_KERNEL=reference to run the slow path.",
        )
    return stored.view(torch.uint8)


def scales_of(stored: Tensor, kind: str) -> Tensor:
    """Return the f32 scales that ``bytes_of`` got, contiguous uint8."""
    return stored.view(_SCALES[kind]).to(torch.float32)
