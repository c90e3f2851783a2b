"""Matrix product with a weight in the plain layout, a piece of the weight at a time."""

from __future__ import annotations

from functools import lru_cache
from math import ceil

import torch
from torch import Tensor

from quantdock.kernels.decode import Decoder
from quantdock.kernels.layout import Grid
from quantdock.kernels.tile_product import Tiles, multiply_tiled

PIECE = 1 << 19  # codes decoded at a time: 1 MiB as float16 and 2 MiB as f32
# Columns that one f32 sum covers. Longer sums are added up from parts, so that the error does not
# grow with K. Among integers each part is exact: 1024 * 128 * 128 = 2^24.
COLUMNS, INTEGER_COLUMNS = 4096, 1024


@lru_cache(maxsize=4096)
def cut(
    n: int, k: int, tile_rows: int, tile_columns: int, integers: bool
) -> tuple[tuple[slice, tuple[slice, ...]], ...]:
    """Return spans of columns that are summed apart, and the rows of each span's pieces.

    Pieces are whole tiles, of about PIECE codes and like size, and cover [n, k].
    """
    spans = _steps(k, INTEGER_COLUMNS if integers else COLUMNS, tile_columns)
    tile_rows = 1 if tile_rows >= n else tile_rows
    return tuple((s, _steps(n, PIECE // (s.stop - s.start), tile_rows)) for s in spans)


def _steps(size: int, most: int, tile: int) -> tuple[slice, ...]:
    """Return ``size`` in slices of like length, about ``most`` long; whole tiles each."""
    if size == 0:
        return ()
    most = max(most // tile, 1) * tile
    step = ceil(size / ceil(size / most) / tile) * tile
    return tuple(slice(start, min(start + step, size)) for start in range(0, size, step))


def multiply(values: Tensor, weight: Grid, *, integers: bool) -> Tensor:
    """Return ``values @ weight.T`` in f32.

    Shapes:
        values: f32 [M, K]. Returns [M, N].
    Args:
        integers: values and codes are whole numbers of 8 bits, so that parts are summed exactly.
    """
    n, k = weight.codes.shape
    decoder = Decoder(weight.spec.element)
    tiles = None
    if weight.scale.shape[1] > 1:
        tiles = Tiles(weight.scale * decoder.unit, weight.rows_per_scale, weight.spec.cols or k)
    spans = cut(n, k, weight.rows_per_scale, tiles.width if tiles else 1, integers)
    sums = values.new_empty((len(spans), values.shape[0], n))
    for part, (columns, pieces) in zip(sums, spans, strict=True):
        x = values if len(spans) == 1 else values[:, columns]
        for rows in pieces:
            piece = decoder(weight.codes[rows, columns])
            out = part if len(pieces) == 1 else part[:, rows]
            if tiles is not None:
                multiply_tiled(out, x, piece, tiles.at(rows, columns))
            else:
                torch.addmm(out, x, piece.t(), beta=0, alpha=decoder.unit, out=out)
    result = part if len(spans) == 1 else sums.sum(0)
    return result if tiles is not None else result.mul_(_column(weight))


def _column(weight: Grid) -> Tensor:
    """Return the scale of each output feature: [1] or [N]."""
    scale = weight.scale.reshape(-1)
    covered, n = weight.rows_per_scale, weight.codes.shape[0]
    return scale if covered in (1, n) else scale.repeat_interleave(covered)[:n]
