"""Matrix product with a weight in the plain layout, a piece of the weight at a time."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from quantdock.formats import ELEMENTS, QuantSpec
from quantdock.kernels.decode import Decoder, unit_of
from quantdock.kernels.layout import Grid
from quantdock.kernels.packed import codes_per_byte
from quantdock.kernels.spans import COLUMNS, EXACT, Span, cut
from quantdock.kernels.tile_product import Tiles, multiply_tiled
from quantdock.schemes import Scheme


@lru_cache(maxsize=1024)
def columns_of_sum(scheme: Scheme) -> int:
    """Return how many columns one f32 sum may cover: whole numbers are summed exactly.

    1024 for int8 x int8, whose largest products are 128 * 128; their sum is 2^24 at most.
    """
    if scheme.activation is None or ELEMENTS[scheme.activation.element].is_float:
        return COLUMNS
    if ELEMENTS[scheme.weight.element].is_float:
        return COLUMNS
    largest = _reach(scheme.weight) * _reach(scheme.activation)
    return min(max(EXACT // largest, 1), COLUMNS)


def _reach(spec: QuantSpec) -> int:
    """Return the largest magnitude of ``code - zero``, zero points among the codes."""
    kind = ELEMENTS[spec.element]
    return int(kind.largest - kind.lowest if spec.zero else max(kind.largest, -kind.lowest))


def multiply(values: Tensor, weight: Grid, *, most: int = COLUMNS) -> Tensor:
    """Return ``values @ weight.T`` in f32.

    Shapes:
        values: f32 [M, K]. Returns [M, N].
    Args:
        most: columns that are summed at once, where scales do not vary along them.
    """
    own = max((t.shape[0] for t in (weight.order, weight.group) if t is not None), default=1)
    if own > 1:
        parts = [weight.segment(index) for index in range(own)]
        return torch.cat([multiply(values, part, most=most) for part in parts], dim=1)
    if weight.order is not None:
        values = values.index_select(1, weight.order[0])
    if weight.scale.shape[1] == 1:
        return _sum_up(values, weight, None, most).mul_(_column(weight))
    tiles = _tiles(weight, weight.factor, unit_of(weight.spec.element))
    return _sum_up(values, weight, tiles, COLUMNS)


def _sum_up(values: Tensor, weight: Grid, scale: Tiles | None, most: int) -> Tensor:
    """Return the product with the codes, scaled by tiles if there are any."""
    element = weight.spec.element
    decoder, zero = Decoder(element), _zero(weight)
    spans = _spans(weight, most)
    num_sums = sum(len(span.parts) for span in spans)
    sums = values.new_empty((num_sums, values.shape[0], weight.codes.shape[0]))
    free = iter(sums)
    for span in spans:
        x = values[:, span.columns]
        parts = [(next(free), part) for part in span.parts]
        for rows in span.pieces:
            own = None if zero is None else zero.at(rows, span.columns)
            piece = decoder(weight.codes[rows, span.stored], x.shape[1], own)
            for result, part in parts:
                out = result[:, rows]
                if scale is not None:
                    multiply_tiled(out, x, piece, scale.at(rows, span.columns))
                else:
                    out.addmm_(x[:, part], piece[:, part].t(), beta=0, alpha=decoder.unit)
    return sums[0] if num_sums == 1 else sums.sum(0)


def _spans(weight: Grid, most: int) -> tuple[Span, ...]:
    n = weight.codes.shape[0]
    has_tiles = weight.zero is not None or weight.scale.shape[1] > 1
    return cut(
        n,
        weight.k,
        weight.rows_per_scale if has_tiles else 1,
        weight.tile_columns,
        most,
        codes_per_byte(weight.spec.element),
    )


def _tiles(weight: Grid, values: Tensor, unit: float = 1.0) -> Tiles:
    """Return ``values``, one for each tile of the weight, times ``unit``."""
    scaled = values if unit == 1 else values * unit
    if weight.group is not None:
        return Tiles(scaled, 1, 1, weight.group[0])
    return Tiles(scaled, weight.rows_per_scale, weight.spec.cols or weight.k)


def _zero(weight: Grid) -> Tiles | None:
    """Return the zero points in units of the decoded numbers."""
    if weight.zero is None:
        return None
    if weight.zero.dtype == torch.int8:
        return _tiles(weight, weight.zero)
    return _tiles(weight, weight.zero.to(torch.float32), 1 / unit_of(weight.spec.element))


def _column(weight: Grid) -> Tensor:
    """Return the scale of each output feature: [1] or [N]."""
    scale = weight.factor.reshape(-1)
    covered, n = weight.rows_per_scale, weight.codes.shape[0]
    return scale if covered in (1, n) else scale.repeat_interleave(covered)[:n]
