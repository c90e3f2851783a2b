"""The blocks in which torch's CPU kernel wants 4-bit codes, learned from the running machine.

``aten::_convert_weight_to_int4pack_for_cpu`` lays out blocks of some rows, column after column,
two rows a byte. How many rows, and which two, depends on the processor, so codes in this layout
never leave it. Known patterns are packed once; whatever does not come back makes the machine unfit.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import torch
from torch import Tensor

ROWS = 16  # N must be a multiple; the last block may be shorter than the others
_HEIGHTS = (64, 32, 16)  # rows of a block with AVX-512, with AVX2, without either
_COLUMNS = 32  # of the patterns


def pack_blocks(codes: Tensor) -> Tensor:
    """Return ``codes`` in blocks.

    Shapes:
        codes: uint8 [N, K], each below 16; N a multiple of ROWS, K even. Returns uint8 [N, K / 2].
    """
    return torch._convert_weight_to_int4pack_for_cpu(codes.to(torch.int32), 1)


def unpack_blocks(packed: Tensor) -> Tensor:
    """Return the codes that ``pack_blocks`` packed on this machine, uint8 [N, K]."""
    height = block_height()
    assert height is not None, "nothing is packed where the layout is unknown"
    return _unpack(packed, height)


@cache
def block_height() -> int | None:
    """Return how many rows a block has on this processor; None if its layout is another."""
    n = 2 * _HEIGHTS[0] + 3 * ROWS  # whole blocks, and the longest short one
    random = torch.Generator(device="cpu").manual_seed(0)
    codes = torch.randint(16, (n, _COLUMNS), generator=random, dtype=torch.uint8, device="cpu")
    for height in _HEIGHTS:
        if torch.equal(_unpack(pack_blocks(codes), height), codes):
            return height
    return None


def _unpack(packed: Tensor, height: int) -> Tensor:
    n, half = packed.shape
    codes = packed.new_empty((n, 2 * half))
    for rows, tall in _blocks(n, height):
        bytes_ = packed[rows].reshape(-1, 2 * half, tall // 2)
        by_column = torch.cat([bytes_ & 15, bytes_ >> 4], dim=2)
        by_row = by_column.transpose(1, 2).contiguous()
        codes[rows] = by_row[:, _order(tall).to(packed.device)].view(-1, 2 * half)
    return codes


def _blocks(n: int, height: int) -> Iterator[tuple[slice, int]]:
    """Yield the whole blocks at once, then the short one."""
    whole = n - n % height
    if whole:
        yield slice(0, whole), height
    if whole < n:
        yield slice(whole, n), n - whole


@cache
def _order(tall: int) -> Tensor:
    """Return for each row of a block where it lies: in which nibble, the low ones first."""
    rows = torch.arange(tall, device="cpu").view(-1, 1).expand(-1, _COLUMNS)
    low, high = (pack_blocks(digits).view(_COLUMNS, -1)[0] for digits in (rows % 16, rows // 16))
    places = torch.cat([low & 15, low >> 4]) + 16 * torch.cat([high & 15, high >> 4])
    return places.argsort()
