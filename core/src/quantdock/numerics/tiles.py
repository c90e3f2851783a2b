"""Tiles: the rectangles of a tensor [N, K] that share one scale, edge tiles included.

Work goes through the rows in chunks, so that no f32 copy of a large weight is ever whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import torch
from torch import Tensor

from quantdock.formats import QuantSpec

_CHUNK = 1 << 18  # elements a thread works on at once: 1 MiB of f32, so that they stay in cache
_LARGEST_CHUNK = 1 << 21  # elements; 8 MiB of f32, of which a few exist at once

_Region = tuple[slice, slice]  # rows and columns


def tile_amax(x: Tensor, spec: QuantSpec) -> Tensor:
    """Return the largest magnitude of each tile; NaN where a tile has NaN.

    Shapes:
        x: any float [N, K]. Returns f32 ``spec.grid(N, K)``.
    """
    return _tile_maximum(x, spec, torch.abs)


def tile_range(x: Tensor, spec: QuantSpec) -> tuple[Tensor, Tensor]:
    """Return the lowest and the largest value of each tile, widened to include 0; as tile_amax."""
    low = _tile_maximum(x, spec, torch.neg).clamp(min=0.0).neg()
    high = _tile_maximum(x, spec, lambda tiles: tiles).clamp(min=0.0)
    return low, high


def expand_scale(scale: Tensor, spec: QuantSpec, n: int, k: int) -> Tensor:
    """Return ``scale`` so that it multiplies a tensor [n, k] by broadcasting.

    Shapes:
        scale: ``spec.grid(n, k)``. Returns [1 or n, 1 or k]: a dimension with one tile stays 1.
    """
    grid_n, grid_k = spec.grid(n, k)
    if grid_n > 1 and spec.rows is not None:
        scale = scale.repeat_interleave(spec.rows, dim=0)[:n]
    if grid_k > 1 and spec.cols is not None:
        scale = scale.repeat_interleave(spec.cols, dim=1)[:, :k]
    return scale


def second_tiles(spec: QuantSpec) -> QuantSpec:
    """Return the tiles of the second scale, counted in tiles of the first; None stays all."""
    second = spec.second
    if second is None:
        raise ValueError(f"{spec} has one level of scales")
    return replace(
        spec,
        rows=second.rows and second.rows // (spec.rows or 1),
        cols=second.cols and second.cols // (spec.cols or 1),
        second=None,
    )


def on_first_grid(second: Tensor, spec: QuantSpec, grid: tuple[int, int]) -> Tensor:
    """Return a second scale so that it multiplies the first one, which has the shape ``grid``."""
    return expand_scale(second, second_tiles(spec), *grid)


def by_regions(
    work: Callable[..., Tensor], x: Tensor, spec: QuantSpec, dtype: torch.dtype, *grids: Tensor
) -> Tensor:
    """Return ``work`` done on all of ``x`` [N, K], as one contiguous tensor [N, K] of ``dtype``.

    ``work`` gets a region [n, k] of whole equal tiles and that region of each of ``grids`` (scales
    and the like); it returns the region's result [n, k].
    """
    if _is_one_region(x, spec):
        return work(x, *grids).contiguous()
    result = torch.empty(x.shape, dtype=dtype, device=x.device)
    for part, tiles in _regions(x, spec):
        result[part] = work(x[part], *(grid[tiles] for grid in grids))
    return result


def as_tiles(region: Tensor, spec: QuantSpec) -> Tensor:
    """Return a region [n, k] as tiles [grid rows, tile rows, grid columns, tile columns]."""
    n, k = region.shape
    rows, cols = min(spec.rows or n, n), min(spec.cols or k, k)
    return region.reshape(n // rows, rows, k // cols, cols)


def on_tiles(grid: Tensor) -> Tensor:
    """Return values on the scale grid so that they broadcast over the tiles of ``as_tiles``."""
    return grid.reshape(grid.shape[0], 1, grid.shape[1], 1)


def _tile_maximum(x: Tensor, spec: QuantSpec, part: Callable[[Tensor], Tensor]) -> Tensor:
    """Return the maximum of ``part`` of x over each tile: f32 ``spec.grid``."""

    def work(region: Tensor) -> Tensor:
        return part(as_tiles(region.to(torch.float32), spec)).amax(dim=(1, 3))

    if _is_one_region(x, spec):
        return work(x)
    result = torch.full(spec.grid(*x.shape), -torch.inf, dtype=torch.float32, device=x.device)
    for place, tiles in _regions(x, spec):
        result[tiles] = torch.maximum(result[tiles], work(x[place]))
    return result


def _is_one_region(x: Tensor, spec: QuantSpec) -> bool:
    """Return whether all of ``x`` [N, K] is one region: not too large, and no edge tiles."""
    n, k = x.shape
    if n == 0 or k == 0 or n % min(spec.rows or n, n) or k % min(spec.cols or k, k):
        return False
    return n * k <= _CHUNK or torch.compiler.is_compiling() or n * k <= _chunk_size(x.device)


def _regions(x: Tensor, spec: QuantSpec) -> Iterator[tuple[_Region, _Region]]:
    """Yield regions of ``x`` [N, K] that cover it, and for each its region of the scale grid.

    A region is whole equal tiles, or a part of one row of tiles. Compiled code keeps no
    intermediate values, so while torch.compile traces only edge tiles make another region.
    """
    n, k = x.shape
    if n == 0 or k == 0:
        return
    step = n if torch.compiler.is_compiling() else max(1, _chunk_size(x.device) // k)
    for rows, grid_rows in _spans(n, min(spec.rows or n, n), step):
        for cols, grid_cols in _spans(k, min(spec.cols or k, k), k):
            yield (rows, cols), (grid_rows, grid_cols)


def _spans(size: int, tile: int, step: int) -> Iterator[tuple[slice, slice]]:
    """Yield slices of ``range(size)`` of about ``step``, and the tiles that each lies in.

    A slice is whole tiles where ``step`` holds one, else a part of one; an edge tile is alone.
    """
    whole = size - size % tile
    length = max(step - step % tile, tile)
    for top in (*range(0, whole, length), *range(whole, size, tile)):
        end = min(top + length, whole if top < whole else size)
        for start in range(top, end, min(step, length)):
            stop = min(start + step, end)
            yield slice(start, stop), slice(start // tile, -(-stop // tile))


def _chunk_size(device: torch.device) -> int:
    """Return how many elements are worked on at once."""
    if device.type != "cpu":
        return _LARGEST_CHUNK
    return min(_CHUNK * torch.get_num_threads(), _LARGEST_CHUNK)
