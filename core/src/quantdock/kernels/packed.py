"""Codes of at most four bits, several a byte, in the order that plain torch unpacks fast.

Each span of columns (spans.py) is packed on its own, in planes: of 4-bit codes the lowest bits of
the bytes are the first half of the columns and the highest bits the second half; of 2-bit codes
four quarters, and so on. So one shift or mask gives neighbouring columns, with no interleaving.

>>> import torch
>>> codes = torch.tensor([[1, 2, 3, -4, -5]], dtype=torch.int8)
>>> packed = pack_codes(codes, "int4", [slice(0, 5)])
>>> [hex(byte) for byte in packed[0].tolist()]
['0xc1', '0xb2', '0x3']
>>> unpack_codes(packed, "int4", [slice(0, 5)]).tolist()
[[1, 2, 3, -4, -5]]
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil

import torch
from torch import Tensor
from torch.nn.functional import pad

from quantdock.formats import ELEMENTS
from quantdock.numerics import torch_dtype


def codes_per_byte(element: str) -> int:
    """Return how many codes lie in a byte of memory."""
    return 8 // ELEMENTS[element].memory_bits


def pack_codes(codes: Tensor, element: str, columns: Sequence[slice]) -> Tensor:
    """Return ``codes`` as they lie in memory: unchanged where each takes a byte.

    Shapes:
        codes: [N, K] in the element's storage dtype. Returns uint8 [N, bytes].
    """
    planes, bits = codes_per_byte(element), ELEMENTS[element].memory_bits
    if planes == 1:
        return codes
    shifts = torch.arange(planes, dtype=torch.uint8, device=codes.device).mul_(bits)[:, None]
    packed = []
    for span in columns:
        part = codes[:, span].view(torch.uint8) & ((1 << bits) - 1)
        size = ceil(part.shape[1] / planes)
        part = pad(part, (0, planes * size - part.shape[1])).view(part.shape[0], planes, size)
        packed.append((part << shifts).sum(1, dtype=torch.uint8))
    return torch.cat(packed, dim=1)


def unpack_codes(packed: Tensor, element: str, columns: Sequence[slice]) -> Tensor:
    """Return the codes [N, K] that ``pack_codes`` packed, in the element's storage dtype."""
    planes, kind = codes_per_byte(element), ELEMENTS[element]
    if planes == 1:
        return packed
    shifts = torch.arange(planes, dtype=torch.uint8, device=packed.device)
    shifts = shifts.mul_(kind.memory_bits)[:, None]
    parts, start = [], 0
    for span in columns:
        width = span.stop - span.start
        stop = start + ceil(width / planes)
        part = packed[:, None, start:stop] >> shifts & ((1 << kind.memory_bits) - 1)
        parts.append(part.flatten(1)[:, :width])
        start = stop
    codes = torch.cat(parts, dim=1)
    if kind.storage == "int8":  # copy the sign into the bits above it
        sign = 1 << kind.memory_bits - 1
        codes = (codes ^ sign) - sign
    return codes.view(torch_dtype(kind.storage))
