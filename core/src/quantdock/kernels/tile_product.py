"""Product with one decoded piece of a weight whose scales vary along the columns.

The scales are multiplied into whichever operand that is less work for: a piece has all its rows
times its columns, and x needs a scaled copy for every row of tiles.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Tiles:
    """A value for each tile of a weight, or of a piece that starts at a tile's corner.

    Edge tiles are cut. Where ``group`` is given, tiles are one column wide, and the value of
    column k lies in column ``group[k]``.
    """

    values: Tensor  # [rows of tiles, columns of tiles], of the piece at least
    height: int  # rows of one tile
    width: int  # columns of one tile
    group: Tensor | None = None  # int32, one for each column of the weight

    def at(self, rows: slice, columns: slice) -> Tiles:
        """Return the tiles of a piece; its slices start at tiles' borders."""
        if self.group is not None:
            values = self.values[rows].index_select(1, self.group[columns])
            return Tiles(values, self.height, self.width)
        if self.values.shape[0] == 1:
            values = self.values[:, columns.start // self.width :]
            return Tiles(values, rows.stop - rows.start, self.width)
        values = self.values[rows.start // self.height :, columns.start // self.width :]
        return Tiles(values, self.height, self.width)


def multiply_tiled(out: Tensor, x: Tensor, piece: Tensor, tiles: Tiles) -> None:
    """Write ``x @ (scaled piece).T`` to ``out``; may overwrite ``piece``.

    Shapes:
        out: f32 [M, n], any strides. x: f32 [M, k]. piece: f32 [n, k], contiguous.
    """
    if 4 * x.shape[0] <= tiles.height:  # measured: from 2 to 4 they are equal
        _scale_values(out, x, piece, tiles)
    else:
        torch.mm(x, on_tiles_(Tensor.mul_, piece, tiles).t(), out=out)


def on_tiles_(change: Callable[[Tensor, Tensor], Tensor], piece: Tensor, tiles: Tiles) -> Tensor:
    """Return ``piece`` [n, k], changed in place by the value of each tile (``Tensor.mul_``)."""
    for rows, grid_rows, height in _along(piece.shape[0], tiles.height):
        for columns, grid_columns, width in _along(piece.shape[1], tiles.width):
            values = tiles.values[grid_rows, None, grid_columns, None]
            part = piece[rows, columns]
            change(part.view(values.shape[0], height, values.shape[2], width), values)
    return piece


def _scale_values(out: Tensor, x: Tensor, piece: Tensor, tiles: Tiles) -> None:
    m, k = x.shape
    for rows, grid_rows, height in _along(piece.shape[0], tiles.height):
        scale = tiles.values[grid_rows, None, :, None].expand(-1, -1, -1, tiles.width)
        scaled = x * scale.reshape(scale.shape[0], 1, -1)[:, :, :k]
        products = torch.bmm(scaled, piece[rows].view(-1, height, k).mT)
        out[:, rows].view(m, -1, height).copy_(products.transpose(0, 1))


def _along(size: int, tile: int) -> Iterator[tuple[slice, slice, int]]:
    """Yield the whole tiles along one dimension, then the cut one: where, which, how long."""
    whole = size // tile
    if whole:
        yield slice(0, whole * tile), slice(0, whole), tile
    if size % tile:
        yield slice(whole * tile, size), slice(whole, whole + 1), size % tile
