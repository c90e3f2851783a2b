"""Cutting a canonical weight: the part of it that one rank holds, with every value unchanged.

Any rows and any columns can be cut, inside tiles too. Rows of a tile that begins before the cut
become a segment of their own. Columns cannot, so a cut inside a tile makes all tiles narrower: a
scale is repeated, and the spec says the new width. Columns in act-order name their groups, so a cut
keeps the groups it uses, however many columns each has left.

>>> import torch
>>> from quantdock.formats import parse_spec
>>> from quantdock.numerics.canonical import quantize_weight
>>> weight = quantize_weight(torch.randn(320, 320), parse_spec("fp8_e4m3[128x128]"))
>>> part = cut_columns(cut_rows(weight, 80, 160), 96, 320)
>>> [(str(s.spec), tuple(s.codes.shape)) for s in part.segments]
[('fp8_e4m3[128x32]', (48, 224)), ('fp8_e4m3[128x32]', (32, 224))]
>>> torch.equal(part.dequantize(), weight.dequantize()[80:160, 96:320])
True
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import accumulate
from math import gcd

import torch
from torch import Tensor

from quantdock.errors import FormatError
from quantdock.formats import QuantSpec
from quantdock.numerics.canonical import CanonicalWeight, Segment
from quantdock.numerics.tiles import expand_scale, second_tiles


def cut_rows(weight: CanonicalWeight, start: int, stop: int) -> CanonicalWeight:
    """Return rows ``start`` to ``stop`` of ``weight``, in memory of their own.

    Raises:
        FormatError: the weight has no such rows.
    """
    n, _ = weight.shape
    if (start, stop) == (0, n):
        return weight
    _require_range(start, stop, n, "rows")
    sizes = [segment.codes.shape[0] for segment in weight.segments]
    parts = [
        (index, _rows_of(weight.segments[index], first, last))
        for index, top in enumerate(accumulate(sizes[:-1], initial=0))
        for first, last in pieces(
            max(start - top, 0), min(stop - top, sizes[index]), weight.segments[index].spec.rows
        )
    ]
    scale, zero = weight.input_scale, weight.input_zero
    indices = [index for index, _ in parts]
    return replace(
        weight,
        segments=tuple(segment for _, segment in parts),
        input_scale=None if scale is None else scale[indices],
        input_zero=None if zero is None else zero[indices],
    )


def cut_columns(weight: CanonicalWeight, start: int, stop: int) -> CanonicalWeight:
    """Return columns ``start`` to ``stop`` of ``weight``, in memory of their own.

    Raises:
        FormatError: the weight has no such columns.
    """
    _, k = weight.shape
    if (start, stop) == (0, k):
        return weight
    _require_range(start, stop, k, "columns")
    multiplier = weight.input_multiplier
    return replace(
        weight,
        segments=tuple(_columns_of(segment, start, stop) for segment in weight.segments),
        input_multiplier=None if multiplier is None else multiplier[start:stop].clone(),
    )


def pieces(start: int, stop: int, tile: int | None) -> Iterator[tuple[int, int]]:
    """Yield ``start`` to ``stop`` in at most two pieces: what is left of a tile, and the rest.

    >>> list(pieces(80, 320, 128)), list(pieces(128, 320, 128)), list(pieces(3, 9, None))
    ([(80, 128), (128, 320)], [(128, 320)], [(3, 9)])
    """
    border = start if tile is None else min(-(-start // tile) * tile, stop)
    if start < border:
        yield start, border
    if border < stop:
        yield border, stop


def narrowed(spec: QuantSpec, start: int) -> QuantSpec:
    """Return ``spec`` with the widest tiles that have a border at column ``start``."""
    if spec.cols is None or spec.act_order:
        return spec
    second = spec.second
    if second is not None and second.cols is not None:
        second = replace(second, cols=gcd(second.cols, start))
    return replace(spec, cols=gcd(spec.cols, start), second=second)


def _rows_of(segment: Segment, start: int, stop: int) -> Segment:
    """Return rows of one segment; ``start`` begins a tile, or all of them lie in one tile."""
    segment = _with_low_second(segment)
    tile = segment.spec.rows or max(stop, 1)
    tiles = slice(start // tile, -(-stop // tile))
    second, level = segment.second_scale, segment.spec.second
    if second is not None and level is not None:
        second = (second if level.rows is None else second[tiles]).clone()
    return replace(
        segment,
        codes=segment.codes[start:stop].clone(),
        scale=segment.scale[tiles].clone(),
        zero=None if segment.zero is None else segment.zero[tiles].clone(),
        second_scale=second,
    )


def _with_low_second(segment: Segment) -> Segment:
    """Return ``segment`` with second tiles as high as the first, or as high as all rows."""
    spec, second = segment.spec, segment.spec.second
    if second is None or second.rows in (None, spec.rows) or segment.second_scale is None:
        return segment
    rows, _ = spec.grid(*segment.codes.shape)
    repeated = expand_scale(
        segment.second_scale,
        replace(second_tiles(spec), cols=1),
        rows,
        segment.second_scale.shape[1],
    )
    return replace(
        segment,
        spec=replace(spec, second=replace(second, rows=spec.rows)),
        second_scale=repeated,
    )


def _columns_of(segment: Segment, start: int, stop: int) -> Segment:
    spec = narrowed(segment.spec, start)
    zero = segment.zero
    codes = segment.codes[:, start:stop].clone(memory_format=torch.contiguous_format)
    if segment.group_index is not None:
        used, index = torch.unique(segment.group_index[start:stop], return_inverse=True)
        return replace(
            segment,
            codes=codes,
            scale=segment.scale[:, used],
            zero=None if zero is None else zero[:, used],
            group_index=index.to(torch.int32),
        )
    return replace(
        segment,
        spec=spec,
        codes=codes,
        scale=_columns_of_grid(segment.scale, segment.spec, spec, start, stop),
        zero=None if zero is None else _columns_of_grid(zero, segment.spec, spec, start, stop),
        second_scale=_columns_of_second(segment, spec, start, stop),
    )


def _columns_of_second(segment: Segment, new: QuantSpec, start: int, stop: int) -> Tensor | None:
    grid, old = segment.second_scale, segment.spec
    if grid is None or old.second is None or new.second is None:
        return None
    wide = replace(old, cols=old.second.cols, second=None)
    return _columns_of_grid(grid, wide, replace(wide, cols=new.second.cols), start, stop)


def _columns_of_grid(grid: Tensor, old: QuantSpec, new: QuantSpec, start: int, stop: int) -> Tensor:
    """Return the columns of a scale grid of ``old`` tiles as one of ``new`` tiles."""
    if old.cols is None or new.cols is None:
        return grid
    repeated = grid.repeat_interleave(old.cols // new.cols, dim=1)
    columns = slice(start // new.cols, -(-stop // new.cols))
    return repeated[:, columns].clone(memory_format=torch.contiguous_format)


def _require_range(start: int, stop: int, size: int, word: str) -> None:
    if not 0 <= start < stop <= size:
        raise FormatError(
            f"A weight of {size} {word} cannot be cut to {word} {start} to {stop}.",
            todo="Ask for a range within it that is not empty.",
        )
