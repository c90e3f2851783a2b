"""The plain layout: codes, grids of scales and zero points, from a canonical weight and back.

It is a bijection: no code changes, a scale is at most repeated for the rows it covers. Columns in
act-order are sorted by their group where the groups are of equal size, so that they are tiles like
others and only x is reordered; where they are not, each column keeps the index of its group.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import torch
from torch import Tensor

from quantdock.errors import FormatError
from quantdock.formats import QuantSpec
from quantdock.kernels.column_order import columns_of, unsorted_index
from quantdock.kernels.decode import subtracts_bytes
from quantdock.kernels.packed import pack_codes, unpack_codes
from quantdock.kernels.second_grid import narrowed, second_as_scale, second_of
from quantdock.kernels.spans import spans_of_columns
from quantdock.numerics import CanonicalWeight, Segment

_TALLEST_TILE = 256  # rows; a taller tile's scale is repeated, so that pieces stay small


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """A weight in the plain layout.

    The scale has one row for the whole weight, one per ``spec.rows`` rows, or one per row where
    the borders of fused segments do not allow less.

    Shapes:
        codes: [N, K], or packed uint8 [N, bytes] (packed.py).
        scale: f32 [1, N / spec.rows or N, grid columns]. zero: int8, uint8 or int32, as scale.
        second: f32, one row or as many as scale, one column or as many; it multiplies scale.
        order: int32 [1 or segments, K], x's column for each stored one.
        group: int32 [1 or segments, K], each column's group; where groups are unequal.
    """

    codes: Tensor
    scale: Tensor
    spec: QuantSpec
    k: int
    sizes: tuple[int, ...]  # rows of each segment
    zero: Tensor | None = None
    second: Tensor | None = None
    order: Tensor | None = None
    group: Tensor | None = None

    @property
    def factor(self) -> Tensor:
        """Return what codes are multiplied with, f32, as scale: both levels where there are two."""
        return self.scale if self.second is None else self.scale * self.second

    @property
    def rows_per_scale(self) -> int:
        """Return how many rows of the weight one row of the scale covers."""
        n = self.codes.shape[0]
        if self.scale.shape[0] == n:
            return 1
        return n if self.scale.shape[0] == 1 or self.spec.rows is None else self.spec.rows

    @property
    def tile_columns(self) -> int:
        """Return a number of columns that spans must be multiples of."""
        return tile_columns(self.spec, self.scale.shape[1], is_indexed=self.group is not None)

    def segment(self, index: int) -> Grid:
        """Return one segment whose columns have an order, or groups, of their own."""
        stop = sum(self.sizes[: index + 1])
        rows = slice(stop - self.sizes[index], stop)
        return Grid(
            codes=self.codes[rows],
            scale=self.scale[rows],
            spec=self.spec,
            k=self.k,
            sizes=(self.sizes[index],),
            zero=None if self.zero is None else self.zero[rows],
            order=None if self.order is None else self.order[index : index + 1],
            group=None if self.group is None else self.group[index : index + 1],
        )

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors by name, those that are there."""
        named = {
            "weight": self.codes,
            "weight_scale": self.scale,
            "weight_zero": self.zero,
            "weight_scale_2": self.second,
            "weight_order": self.order,
            "weight_group": self.group,
        }
        return {name: tensor for name, tensor in named.items() if tensor is not None}


def grid_of(
    tensors: Mapping[str, Tensor | None], spec: QuantSpec, k: int, sizes: Sequence[int]
) -> Grid:
    """Return the grid that ``Grid.tensors`` named; ``sizes`` empty is one segment."""
    codes, scale = tensors["weight"], tensors["weight_scale"]
    assert codes is not None and scale is not None, "every layout has codes and scales"
    return Grid(
        codes=codes,
        scale=scale,
        spec=spec,
        k=k,
        sizes=tuple(sizes) or (codes.shape[0],),
        zero=tensors.get("weight_zero"),
        second=tensors.get("weight_scale_2"),
        order=tensors.get("weight_order"),
        group=tensors.get("weight_group"),
    )


def to_grid(weight: CanonicalWeight, spec: QuantSpec, *, sorts: bool = True) -> Grid:
    """Return ``weight`` in the plain layout.

    Args:
        sorts: columns in act-order are sorted by group where groups are of equal size; False: they
            stay, so that experts whose groups are not lie all alike.
    Raises:
        FormatError: a segment has another spec.
    """
    wrong = [f"segment {i} is {s.spec}" for i, s in enumerate(weight.segments) if s.spec != spec]
    if wrong:
        raise FormatError(
            f"The weight does not fit a kernel that was chosen for {spec}.",
            why=wrong,
            todo="Choose the kernel for the scheme that the weight has.",
        )
    k = weight.shape[1]
    sizes = tuple(s.codes.shape[0] for s in weight.segments)
    rows = None if _shares_grid(spec, sizes) else spec.rows or max(sizes)
    scale = _cat(
        [_by_row(s.scale, size, rows) for s, size in zip(weight.segments, sizes, strict=True)]
    )
    zeros = [s.zero for s in weight.segments if s.zero is not None]
    zero = _cat([_by_row(z, n, rows) for z, n in zip(zeros, sizes, strict=True)]) if zeros else None
    seconds = [second_as_scale(s) for s in weight.segments if s.second_scale is not None]
    parts = [_by_row(s, n, rows) for s, n in zip(seconds, sizes, strict=False)]
    order, group = columns_of(weight.segments, spec, sorts=sorts)
    codes = [s.codes for s in weight.segments]
    if order is not None:
        orders = order.expand(len(codes), -1)
        codes = [c[:, o] for c, o in zip(codes, orders, strict=True)]
    columns = spans_of_columns(k, tile_columns(spec, scale.shape[1], is_indexed=group is not None))
    return Grid(
        codes=_cat([pack_codes(c, spec.element, columns) for c in codes]),
        scale=scale,
        spec=spec,
        k=k,
        sizes=sizes,
        zero=None if zero is None else _narrow(zero, spec.element),
        second=narrowed(_cat(parts), spec, len(parts)) if parts else None,
        order=order,
        group=group,
    )


def to_sorted_grid(weight: CanonicalWeight, spec: QuantSpec) -> Grid:
    """Return ``to_grid`` for a kernel that ``sorts_columns``.

    Raises:
        FormatError: groups in act-order are of unequal size; ``why_not`` says so where it is known.
    """
    grid = to_grid(weight, spec)
    if grid.group is not None:
        raise FormatError(
            f"A {spec} weight {list(weight.shape)} has groups of unequal size.",
            why=["the kernel sorts columns by group, and takes no index of them"],
            todo="Set QUANTDOCK_KERNEL=reference to run the slow path.",
        )
    return grid


def codes_of(grid: Grid) -> Tensor:
    """Return the codes [N, K] in the element's storage dtype, columns in stored order."""
    return unpack_codes(grid.codes, grid.spec.element, spans_of_columns(grid.k, grid.tile_columns))


def grid_with(
    codes: Tensor,
    scale: Tensor,
    spec: QuantSpec,
    sizes: Sequence[int],
    *,
    zero: Tensor | None = None,
    second: Tensor | None = None,
    order: Tensor | None = None,
) -> Grid:
    """Return the grid whose codes are ``codes`` [N, K]: the inverse of ``codes_of``."""
    k = codes.shape[1]
    columns = spans_of_columns(k, tile_columns(spec, scale.shape[1], is_indexed=False))
    return Grid(
        codes=pack_codes(codes, spec.element, columns),
        scale=scale,
        spec=spec,
        k=k,
        sizes=tuple(sizes) or (codes.shape[0],),
        zero=zero,
        second=second,
        order=order,
    )


def from_grid(grid: Grid) -> tuple[Segment, ...]:
    """Return the segments that ``to_grid`` laid out."""
    spec, covered = grid.spec, grid.rows_per_scale
    codes = codes_of(grid)
    segments = []
    for number, (start, stop) in enumerate(pairwise(accumulate(grid.sizes, initial=0))):
        tiles = -(-(stop - start) // (spec.rows or max(stop - start, 1)))
        tops = [(start + tile * (spec.rows or 1)) // covered for tile in range(tiles)]
        index, inverse = _group_index(grid, number)
        own = codes[start:stop]
        segments.append(
            Segment(
                spec=spec,
                codes=own if inverse is None else own[:, inverse],
                scale=grid.scale[tops],
                zero=None if grid.zero is None else grid.zero[tops].to(torch.int32),
                second_scale=_second(grid, tops, stop - start),
                group_index=index,
            )
        )
    return tuple(segments)


def tile_columns(spec: QuantSpec, num_groups: int, *, is_indexed: bool) -> int:
    """Return a number of columns that spans must be multiples of."""
    return 1 if is_indexed or num_groups == 1 or spec.cols is None else spec.cols


def _second(grid: Grid, tops: Sequence[int], n: int) -> Tensor | None:
    """Return the second scales of a segment of ``n`` rows, whose first ones are at ``tops``."""
    if grid.second is None:
        return None
    return second_of(grid.second.expand_as(grid.scale)[tops], grid.spec, (n, grid.k))


def _group_index(grid: Grid, number: int) -> tuple[Tensor | None, Tensor | None]:
    """Return a segment's group index, and the stored column of each column where sorted."""
    if grid.group is not None:
        return grid.group.expand(len(grid.sizes), -1)[number], None
    if grid.order is None:
        return None, None
    return unsorted_index(grid.order.expand(len(grid.sizes), -1)[number], grid.spec)


def _shares_grid(spec: QuantSpec, sizes: Sequence[int]) -> bool:
    """Return whether the segments' grids, one under another, are the grid of the whole."""
    if spec.rows is None:
        return len(sizes) == 1
    borders = list(accumulate(sizes))[:-1]
    return spec.rows <= _TALLEST_TILE and not any(border % spec.rows for border in borders)


def _by_row(grid: Tensor, n: int, rows: int | None) -> Tensor:
    """Return ``grid`` with each of its rows repeated for the ``rows`` rows of the weight."""
    if rows is None:
        return grid
    return grid.expand(n, -1) if grid.shape[0] == 1 else grid.repeat_interleave(rows, dim=0)[:n]


def _narrow(zero: Tensor, element: str) -> Tensor:
    """Return ``zero`` in a byte where all of it fits: int8 where it is subtracted from bytes."""
    low, high = (int(value) for value in zero.aminmax()) if zero.numel() else (0, 0)
    if low >= 0 and high <= 127 and subtracts_bytes(element):
        return zero.to(torch.int8)
    return zero.to(torch.uint8) if low >= 0 and high <= 255 else zero


def _cat(parts: Sequence[Tensor]) -> Tensor:
    """Return ``parts`` under one another, contiguous; float8 has no cat everywhere, bytes do."""
    if len(parts) == 1:
        return parts[0].contiguous()
    if parts[0].itemsize > 1:
        return torch.cat(list(parts))
    return torch.cat([part.view(torch.uint8) for part in parts]).view(parts[0].dtype)
