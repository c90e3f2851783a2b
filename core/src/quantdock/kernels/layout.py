"""The plain layout: codes [N, K] and one grid of scales, from a canonical weight and back.

It is a bijection: no code changes, and a scale is at most repeated for the rows it covers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from quantdock.errors import FormatError
from quantdock.formats import QuantSpec
from quantdock.numerics import CanonicalWeight, Segment

_TALLEST_TILE = 256  # rows; a taller tile's scale is repeated, so that pieces stay small


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """A weight in the plain layout.

    The scale has one row for the whole weight, one per ``spec.rows`` rows, or one per row where
    the borders of fused segments do not allow less.

    Shapes:
        codes: [N, K]. scale: f32 [1, N / spec.rows or N, grid columns].
    """

    codes: Tensor
    scale: Tensor
    spec: QuantSpec

    @property
    def rows_per_scale(self) -> int:
        """Return how many rows of the weight one row of the scale covers."""
        n = self.codes.shape[0]
        if self.scale.shape[0] == n:
            return 1
        return n if self.scale.shape[0] == 1 or self.spec.rows is None else self.spec.rows


def to_grid(weight: CanonicalWeight, spec: QuantSpec) -> Grid:
    """Return ``weight`` in the plain layout.

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
    codes = [s.codes for s in weight.segments]
    scales = [s.scale for s in weight.segments]
    if not _shares_grid(spec, [c.shape[0] for c in codes]):
        scales = [_per_row(s) for s in weight.segments]
    if len(codes) == 1:
        return Grid(codes=codes[0].contiguous(), scale=scales[0].contiguous(), spec=spec)
    return Grid(codes=_cat(codes), scale=torch.cat(scales), spec=spec)


def from_grid(grid: Grid, sizes: Sequence[int]) -> tuple[Segment, ...]:
    """Return the segments of ``sizes`` rows that ``to_grid`` laid out."""
    spec, covered = grid.spec, grid.rows_per_scale
    segments = []
    for start, size in zip(accumulate(sizes, initial=0), sizes, strict=False):
        tiles, _ = spec.grid(size, grid.codes.shape[1])
        firsts = [start + tile * (spec.rows or size) for tile in range(tiles)]
        segments.append(
            Segment(
                spec=spec,
                codes=grid.codes[start : start + size],
                scale=grid.scale[[first // covered for first in firsts]],
            )
        )
    return tuple(segments)


def _shares_grid(spec: QuantSpec, sizes: Sequence[int]) -> bool:
    """Return whether the segments' grids, one under another, are the grid of the whole."""
    if spec.rows is None:
        return len(sizes) == 1
    borders = list(accumulate(sizes))[:-1]
    return spec.rows <= _TALLEST_TILE and not any(border % spec.rows for border in borders)


def _per_row(segment: Segment) -> Tensor:
    n = segment.codes.shape[0]
    if segment.spec.rows is None:
        return segment.scale.expand(n, -1)
    return segment.scale.repeat_interleave(segment.spec.rows, dim=0)[:n]


def _cat(codes: Sequence[Tensor]) -> Tensor:
    """Return the codes under one another; float8 has no cat on every device, bytes do."""
    return torch.cat([c.view(torch.uint8) for c in codes]).view(codes[0].dtype)
