"""Matrix product with a weight in the plain layout, a piece of the weight at a time."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import ceil

from torch import Tensor

from quantdock.kernels.decode import Decoder, unit_of
from quantdock.kernels.layout import Grid
from quantdock.kernels.tile_product import Tiles, multiply_tiled

PIECE = 1 << 20  # codes decoded at a time: 2 MiB as float16 and 4 MiB as f32
# Columns that one f32 sum covers. Longer sums are added up from parts, so that the error does not
# grow with K. Among integers each part is exact: 1024 * 128 * 128 = 2^24.
COLUMNS, INTEGER_COLUMNS = 4096, 1024


@dataclass(frozen=True, slots=True)
class Span:
    """Neighbouring columns of a weight, and how they are worked through."""

    columns: slice
    pieces: tuple[slice, ...]  # rows that are decoded at a time
    parts: tuple[slice, ...]  # columns, counted from the span's first, that are summed apart


@lru_cache(maxsize=4096)
def cut(n: int, k: int, tile_rows: int, tile_columns: int, most: int) -> tuple[Span, ...]:
    """Return spans that cover [n, k]; their pieces are whole tiles, of about PIECE codes.

    Args:
        most: columns of a part, where tiles do not span more.
    """
    tile_rows = 1 if tile_rows >= n else tile_rows
    spans = []
    for columns in _steps(k, COLUMNS, tile_columns):
        width = columns.stop - columns.start
        spans.append(
            Span(columns, _steps(n, PIECE // width, tile_rows), _steps(width, most, tile_columns))
        )
    return tuple(spans)


def _steps(size: int, most: int, tile: int) -> tuple[slice, ...]:
    """Return ``size`` in slices of like length, at most ``most`` long; whole tiles each."""
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
    if weight.scale.shape[1] == 1:
        spans = cut(n, k, 1, 1, INTEGER_COLUMNS if integers else COLUMNS)
        return _sum_up(values, weight, spans, None).mul_(_column(weight))
    tiles = Tiles(
        weight.scale * unit_of(weight.spec.element), weight.rows_per_scale, weight.spec.cols or k
    )
    return _sum_up(values, weight, cut(n, k, tiles.height, tiles.width, COLUMNS), tiles)


def _sum_up(values: Tensor, weight: Grid, spans: tuple[Span, ...], tiles: Tiles | None) -> Tensor:
    """Return the product with the codes, scaled by ``tiles`` if there are any."""
    decoder = Decoder(weight.spec.element)
    num_sums = sum(len(span.parts) for span in spans)
    sums = values.new_empty((num_sums, values.shape[0], weight.codes.shape[0]))
    free = iter(sums)
    for span in spans:
        x = values[:, span.columns]
        parts = [(next(free), part) for part in span.parts]
        for rows in span.pieces:
            piece = decoder(weight.codes[rows, span.columns])
            for result, part in parts:
                out = result[:, rows]
                if tiles is not None:
                    multiply_tiled(out, x, piece, tiles.at(rows, span.columns))
                else:
                    out.addmm_(x[:, part], piece[:, part].t(), beta=0, alpha=decoder.unit)
    return sums[0] if num_sums == 1 else sums.sum(0)


def _column(weight: Grid) -> Tensor:
    """Return the scale of each output feature: [1] or [N]."""
    scale = weight.scale.reshape(-1)
    covered, n = weight.rows_per_scale, weight.codes.shape[0]
    return scale if covered in (1, n) else scale.repeat_interleave(covered)[:n]
