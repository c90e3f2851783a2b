"""Where block scales lie in memory: row after row, or swizzled as NVIDIA's tensor cores read them.

Swizzled, the grid is padded with zeros to whole tiles of 128 x 4 scales, which follow each other
row by row. Inside a tile rows r, r + 32, r + 64 and r + 96 are neighbours: 32 x 16 bytes.
Source: cuBLAS documentation, "1D Block Scaling Factors Layout".

>>> import torch
>>> scale = torch.arange(512, dtype=torch.int32).view(128, 4)
>>> swizzled = swizzle_scale(scale)
>>> swizzled[:8].tolist(), torch.equal(unswizzle_scale(swizzled, 128, 4), scale)
([0, 1, 2, 3, 128, 129, 130, 131], True)
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from quantdock.errors import FormatError

_ROWS, _COLUMNS, _QUARTERS = 128, 4, 4


def swizzle_scale(scale: Tensor) -> Tensor:
    """Return a scale grid swizzled; bits are moved, in whatever dtype they are.

    Shapes:
        scale: [..., R, C]. Returns [..., ceil(R / 128) * 128 * ceil(C / 4) * 4].
    """
    rows, columns = scale.shape[-2:]
    raw = pad(_bits(scale), (0, -columns % _COLUMNS, 0, -rows % _ROWS))
    quarter = _ROWS // _QUARTERS
    height, width = raw.shape[-2] // _ROWS, raw.shape[-1] // _COLUMNS
    tiles = raw.reshape(*raw.shape[:-2], height, _QUARTERS, quarter, width, _COLUMNS)
    swizzled: Tensor = tiles.movedim(-2, -4).transpose(-2, -3).flatten(-5)
    return swizzled.view(scale.dtype)


def unswizzle_scale(swizzled: Tensor, rows: int, columns: int) -> Tensor:
    """Return the grid [rows, columns] that was swizzled: the inverse, without the padding.

    Shapes:
        swizzled: [..., ceil(R / 128) * 128 * ceil(C / 4) * 4]. Returns [..., R, C].
    Raises:
        FormatError: the number of scales is that of another grid.
    """
    row_tiles, column_tiles = -(-rows // _ROWS), -(-columns // _COLUMNS)
    padded = row_tiles * _ROWS * column_tiles * _COLUMNS
    if swizzled.shape[-1] != padded:
        raise FormatError(
            f"{list(swizzled.shape)} is no swizzled grid of {rows} x {columns} scales.",
            why=[f"padded to tiles of {_ROWS} x {_COLUMNS} that has {padded} scales"],
            todo="Give the grid's own size, and the swizzled scales as one dimension.",
        )
    quarter = _ROWS // _QUARTERS
    shape = (row_tiles, column_tiles, quarter, _QUARTERS, _COLUMNS)
    tiles = _bits(swizzled).reshape(*swizzled.shape[:-1], *shape)
    grid: Tensor = tiles.transpose(-2, -3).movedim(-4, -2).flatten(-2).flatten(-4, -2)
    return grid[..., :rows, :columns].contiguous().view(swizzled.dtype)


def _bits(scale: Tensor) -> Tensor:
    """Return one-byte scales as bytes: torch cannot pad every float8 dtype."""
    return scale.view(torch.uint8) if scale.element_size() == 1 else scale
