"""The pieces in which a weight is worked through: spans of columns, pieces of rows, parts of sums.

>>> [span.columns for span in cut(64, 9000, 1, 128, 4096)]
[slice(0, 3072, None), slice(3072, 6144, None), slice(6144, 9000, None)]
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from math import ceil

PIECE = 1 << 20  # codes decoded at a time: 4 MiB as f32, and at most 2 MiB on the way there
# Columns that one f32 sum covers. Longer sums are added up from parts, so that the error does not
# grow with K.
COLUMNS = 4096
EXACT = 1 << 24  # f32 holds every whole number up to this


@dataclass(frozen=True, slots=True)
class Span:
    """Neighbouring columns of a weight, and how they are worked through."""

    columns: slice
    stored: slice  # where they lie in a row of the codes in memory
    pieces: tuple[slice, ...]  # rows that are decoded at a time
    parts: tuple[slice, ...]  # columns, counted from the span's first, that are summed apart


@lru_cache(maxsize=4096)
def cut(
    n: int, k: int, tile_rows: int, tile_columns: int, most: int, codes_per_byte: int = 1
) -> tuple[Span, ...]:
    """Return spans that cover [n, k]; their pieces are whole tiles, of about PIECE codes.

    Args:
        most: columns of a part, where tiles do not span more.
    """
    tile_rows = 1 if tile_rows >= n else tile_rows
    columns = spans_of_columns(k, tile_columns)
    widths = [span.stop - span.start for span in columns]
    ends = list(accumulate((ceil(width / codes_per_byte) for width in widths), initial=0))
    return tuple(
        Span(
            span,
            slice(start, stop),
            _steps(n, PIECE // width, tile_rows),
            _steps(width, most, tile_columns),
        )
        for span, width, start, stop in zip(columns, widths, ends, ends[1:], strict=False)
    )


def spans_of_columns(k: int, tile_columns: int) -> tuple[slice, ...]:
    """Return ``k`` columns in spans of whole tiles, all but the last of one width."""
    return _steps(k, COLUMNS, tile_columns)


def _steps(size: int, most: int, tile: int) -> tuple[slice, ...]:
    """Return ``size`` in slices of like length, at most ``most`` long; whole tiles each."""
    if size == 0:
        return ()
    most = max(most // tile, 1) * tile
    step = ceil(size / ceil(size / most) / tile) * tile
    return tuple(slice(start, min(start + step, size)) for start in range(0, size, step))
