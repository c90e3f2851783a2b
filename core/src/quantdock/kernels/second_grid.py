"""Second scales in the plain layout: one for each first scale, or one for all, and back."""

from __future__ import annotations

from torch import Tensor

from quantdock.formats import QuantSpec
from quantdock.numerics import Segment


def second_as_scale(segment: Segment) -> Tensor:
    """Return f32, in the shape of the segment's scale, the second scale of each first one."""
    second, spec = segment.second_scale, segment.spec.second
    assert second is not None and spec is not None, "only segments of two levels are asked"
    rows, columns = segment.scale.shape
    tall = _first_tiles(spec.rows, segment.spec.rows, rows)
    wide = _first_tiles(spec.cols, segment.spec.cols, columns)
    return second.repeat_interleave(tall, 0)[:rows].repeat_interleave(wide, 1)[:, :columns]


def second_of(each: Tensor, spec: QuantSpec, shape: tuple[int, int]) -> Tensor:
    """Return the second scales of a weight of ``shape`` from those of its first scales."""
    assert spec.second is not None, "only specs of two levels are asked"
    rows, columns = spec.second.grid(*shape)
    tall = _first_tiles(spec.second.rows, spec.rows, len(each))
    wide = _first_tiles(spec.second.cols, spec.cols, each.shape[1])
    return each[::tall, ::wide][:rows, :columns].contiguous()


def narrowed(second: Tensor, spec: QuantSpec, num_segments: int) -> Tensor:
    """Return ``second`` without the rows and columns that must repeat the first.

    Values do not decide, so that layers of one kind have tensors of one shape.
    """
    assert spec.second is not None, "only specs of two levels are asked"
    rows = 1 if num_segments == 1 and spec.second.rows is None else len(second)
    columns = 1 if spec.second.cols is None else second.shape[1]
    return second[:rows, :columns].clone()


def _first_tiles(second: int | None, first: int | None, count: int) -> int:
    """Return how many first tiles a second one holds along a side that has ``count``."""
    return max(count, 1) if second is None else second // (first or 1)
