"""Codes of 4 and 6 bits and their scales as bytes, so that a GPU reads neighbours at once.

A byte holds one code of 6 bits, or two of 4 bits that lie 16 columns apart, the first in the low
half: 16 neighbouring bytes have 16 neighbouring columns in each half, which share their scale.
Scales of one byte stay what the file has, e4m3 or e8m0. Edges are filled with zeros.

>>> import torch
>>> codes = torch.arange(32, dtype=torch.uint8)[None] // 16 + 1
>>> packed = pack_runs(codes, bits=4)
>>> list(packed.shape), hex(packed[0, 0])
([1, 16], '0x21')
>>> torch.equal(unpack_runs(packed, 32, bits=4), codes)
True
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from quantdock.errors import FormatError

RUN = 16  # neighbouring columns that share a half of their bytes, and a scale
_SCALES = {"e4m3": torch.float8_e4m3fn, "e8m0": torch.float8_e8m0fnu}


def per_byte(bits: int) -> int:
    """Return how many codes a byte holds."""
    return 2 if bits <= 4 else 1


def pack_runs(codes: Tensor, *, bits: int) -> Tensor:
    """Return ``codes``, uint8 [N, K], in bytes [N, K / codes of a byte]; K is filled up."""
    n, k = codes.shape
    halves = per_byte(bits)
    runs = pad(codes, (0, -k % (RUN * halves))).view(n, -1, halves, RUN)
    packed = runs[:, :, 0] if halves == 1 else runs[:, :, 0] | runs[:, :, 1] << 4
    return packed.reshape(n, -1).contiguous()


def unpack_runs(packed: Tensor, k: int, *, bits: int) -> Tensor:
    """Return the codes, uint8 [N, k], that ``pack_runs`` packed."""
    runs = packed.view(len(packed), -1, 1, RUN)
    if per_byte(bits) == 2:
        runs = torch.cat([runs & 15, runs >> 4], dim=2)
    return runs.reshape(len(packed), -1)[:, :k].contiguous()


def pack_scale(scale: Tensor, kind: str) -> Tensor:
    """Return f32 ``scale`` as bytes of its stored kind, "e4m3" or "e8m0".

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


def unpack_scale(stored: Tensor, kind: str) -> Tensor:
    """Return the f32 scales that ``pack_scale`` packed."""
    return stored.view(_SCALES[kind]).to(torch.float32)
