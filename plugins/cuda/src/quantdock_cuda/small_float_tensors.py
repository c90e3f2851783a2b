"""The tensors of a layer of fp4 or fp6 weights, in runs or in blocks, and the weight from them.

Both layouts have the same names; words in runs have two dimensions, words in blocks four.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from quantdock.errors import FormatError
from quantdock.formats import QuantSpec
from quantdock.kernels.layout import Grid, codes_of, grid_with, to_grid
from quantdock.numerics import CanonicalWeight
from quantdock_triton.packed_layout import float_packing_of, pack_words, unpack_words
from quantdock_triton.packed_scale_layout import pack_scale_words, unit_of, unpack_scale_words
from quantdock_triton.small_float_layout import (
    MOST_SCALE,
    pack_runs,
    pack_scale,
    unpack_runs,
    unpack_scale,
)
from quantdock_triton.small_float_matmul import small_float_of

WORDS, SCALE, SECOND = "weight_words", "weight_scale_bytes", "weight_scale_2"


def in_runs(weight: CanonicalWeight, spec: QuantSpec) -> dict[str, Tensor]:
    """Return ``weight`` as named tensors for ``small_float_kernel``.

    ``weight_words`` int16 [N, words]; ``weight_scale_bytes`` uint8 [N, scales of runs];
    ``weight_scale_2`` f32 [N], where the scheme has two levels.

    Raises:
        FormatError: the weight has another format than ``spec``, or scales that are none of its
            kind, or above 2^65, or second ones that differ along a row.
    """
    grid, packing = _checked_grid(weight, spec), small_float_of(spec).packing
    tensors = {
        WORDS: pack_runs(codes_of(grid).view(torch.uint8), packing),
        SCALE: pack_scale(grid.scale, spec.scale, grid.k, packing),
    }
    if grid.second is not None:
        tensors[SECOND] = _of_rows(grid.second, len(grid.scale))
    return tensors


def in_blocks(weight: CanonicalWeight, spec: QuantSpec) -> dict[str, Tensor]:
    """Return ``weight`` as named tensors for ``packed_kernel``; errors are as of ``in_runs``.

    ``weight_words`` int16 [N / 64, blocks, 64, plane]; ``weight_scale_bytes`` int32 [N / 64,
    blocks, runs of a plane, 64]; ``weight_scale_2`` f32 [1, N], times what sums lack.
    """
    grid = _checked_grid(weight, spec)
    packing, n = float_packing_of(spec, grid.k), len(grid.scale)
    second = torch.ones(n, device=grid.scale.device)
    if grid.second is not None:
        second = _of_rows(grid.second, n)
    return {
        WORDS: pack_words(codes_of(grid).view(torch.uint8), packing),
        SCALE: pack_scale_words(grid.scale, grid.k, packing),
        SECOND: second[None] * unit_of(spec.scale),
    }


def num_rows(words: Tensor, second: Tensor | None) -> int:
    """Return the rows N of a weight."""
    if words.dim() == 2:
        return len(words)
    assert second is not None, "blocks may be higher than the weight, whose rows have a factor each"
    return second.shape[1]


def plain_grid(
    words: Tensor,
    scale: Tensor,
    second: Tensor | None,
    spec: QuantSpec,
    k: int,
    sizes: Sequence[int],
) -> Grid:
    """Return the weight in the plain layout of the core."""
    n = num_rows(words, second)
    if words.dim() == 2:
        of_runs = small_float_of(spec).packing
        codes = unpack_runs(words, k, of_runs)
        scales = unpack_scale(scale, spec.scale, k, of_runs)
        factor = second
    else:
        packing = float_packing_of(spec, k)
        codes = unpack_words(words, n, k, packing)
        scales = unpack_scale_words(scale, n, k, packing)
        factor = None if second is None or spec.second is None else second[0] / unit_of(spec.scale)
    return grid_with(codes, scales, spec, sizes, second=None if factor is None else factor[:, None])


def _checked_grid(weight: CanonicalWeight, spec: QuantSpec) -> Grid:
    grid = to_grid(weight, spec)
    if bool((grid.scale > MOST_SCALE).any()):
        raise FormatError(
            f"A scale of {float(grid.scale.max()):.3g} is above 2^65.",
            why=["the kernel multiplies codes by scales times 2^62, in bfloat16"],
            todo="Set QUANTDOCK_KERNEL=reference to run the slow path.",
        )
    return grid


def _of_rows(second: Tensor, n: int) -> Tensor:
    """Return the second scales, one for each of ``n`` rows.

    Raises:
        FormatError: they differ along a row.
    """
    if second.shape[1] > 1:
        raise FormatError(
            f"Second scales of shape {list(second.shape)} differ along a row.",
            why=["the kernel takes one for a row, at most"],
            todo="Set QUANTDOCK_KERNEL=reference to run the slow path.",
        )
    return second.expand(n, 1).reshape(-1).contiguous()
