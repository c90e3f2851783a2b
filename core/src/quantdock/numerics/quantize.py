"""Quantize and dequantize any tensor by its spec. This is what every kernel is compared with.

The rules, and where libraries differ from them, are in docs/numerics.md.

>>> import torch
>>> from quantdock.formats import parse_spec
>>> spec = parse_spec("fp8_e4m3[1x*]")
>>> q = quantize(torch.tensor([[1.0, -448.0], [0.0, 0.0]]), spec)
>>> q.scale.tolist()[0], dequantize(q.codes, q.scale, spec).tolist()
([1.0], [[1.0, -448.0], [0.0, 0.0]])
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from quantdock.errors import FormatError
from quantdock.formats import QuantSpec
from quantdock.numerics.cast import decode, element_of, encode
from quantdock.numerics.dtypes import torch_dtype
from quantdock.numerics.scales import (
    SMALLEST_SCALE,
    choose_scale,
    choose_scale_and_zero,
    decode_scale,
)
from quantdock.numerics.tiles import (
    as_tiles,
    by_regions,
    on_tiles,
    tile_amax,
    tile_range,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantized:
    """A tensor as codes: ``scale * (codes - zero)``.

    Shapes:
        codes: as the tensor. scale: f32 ``spec.grid``; where each row has its own scale, the
        tensor's leading dimensions and the grid's columns. zero: int32, as scale.
    """

    codes: Tensor
    scale: Tensor
    zero: Tensor | None = None


def quantize(
    x: Tensor, spec: QuantSpec, scale: Tensor | None = None, zero: Tensor | None = None
) -> Quantized:
    """Return ``x`` as codes: x / scale (true division in f32), nearest code, ties to even.

    Values out of range, and infinities, become the last finite code. NaN makes the scale of its
    tile NaN, and with a given scale the float codes themselves.

    Shapes:
        x: f32, bf16 or f16 [N, K]; also [..., K] unless tiles have more than one row.
    Args:
        scale: a static scale >= 0, in any shape of the grid's size; None computes it from ``x``.
        zero: the static zero point, given with ``scale`` where the spec has one.
    Raises:
        FormatError: shapes, scale or zero point do not fit the spec.
    """
    flat = _as_matrix(x.detach(), spec)
    if (zero is not None) is not (spec.zero and scale is not None):
        raise FormatError(
            f"{spec} was given {'a scale and no' if zero is None else 'a'} zero point.",
            why=["a static zero point comes with a static scale, where the spec has zero=True"],
            todo="Pass scale and zero together, or neither.",
        )
    if scale is not None:
        scale = _as_grid(decode_scale(scale), spec, flat)
        zero = None if zero is None else _as_grid(zero.to(torch.int32), spec, flat)
        divisor = scale.clamp(min=SMALLEST_SCALE)  # a stored scale of 0 marks a tile of zeros
    elif spec.zero:
        scale, zero = choose_scale_and_zero(*tile_range(flat, spec), spec)
        divisor = scale
    else:
        divisor = scale = choose_scale(tile_amax(flat, spec), spec)
    storage = torch_dtype(element_of(spec.element).storage)
    grids = (divisor,) if zero is None else (divisor, zero)

    def work(region: Tensor, scale: Tensor, zero: Tensor | None = None) -> Tensor:
        tiles = as_tiles(region.to(torch.float32), spec) / on_tiles(scale)
        if zero is not None:
            tiles.round_().add_(on_tiles(zero))
        return encode(tiles, spec.element).view(torch.uint8).reshape(region.shape)

    # As bytes: torch.compile cannot assign to a slice of a float8 tensor.
    codes = by_regions(work, flat, spec, torch.uint8, *grids).view(storage)
    return _shaped(Quantized(codes=codes, scale=scale, zero=zero), x, spec)


def dequantize(
    codes: Tensor,
    scale: Tensor,
    spec: QuantSpec,
    *,
    zero: Tensor | None = None,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """Return the real values ``scale * (codes - zero)``: exact codes, one f32 product, one cast.

    Shapes:
        codes: [N, K]; also [..., K] unless tiles have more than one row. scale: any shape of the
        grid's size, in any storage (see decode_scale). zero: as scale. Returns codes' shape.
    Raises:
        FormatError: shapes or dtypes do not fit the spec.
    """
    flat = _as_matrix(codes, spec)
    grids = [_as_grid(decode_scale(scale), spec, flat)]
    if zero is not None:
        grids.append(_as_grid(zero, spec, flat))

    def work(region: Tensor, scale: Tensor, zero: Tensor | None = None) -> Tensor:
        tiles = as_tiles(decode(region, spec.element), spec)
        if zero is not None:
            tiles.sub_(on_tiles(zero))
        return tiles.mul_(on_tiles(scale)).reshape(region.shape).to(dtype)

    return by_regions(work, flat, spec, dtype, *grids).view(codes.shape)


def _as_matrix(x: Tensor, spec: QuantSpec) -> Tensor:
    """Return ``x`` [..., K] as [M, K]."""
    if x.dim() == 2:
        return x
    if x.dim() == 0 or spec.rows not in (None, 1):
        raise FormatError(
            f"{spec} cannot encode a tensor of shape {tuple(x.shape)}.",
            why=["its tiles have rows and columns"],
            todo="Pass one matrix [N, K] at a time.",
        )
    return x.reshape(x.shape[:-1].numel(), x.shape[-1])


def _as_grid(values: Tensor, spec: QuantSpec, flat: Tensor) -> Tensor:
    """Return ``values`` as the scale grid of ``flat`` [N, K]; the sizes must agree."""
    n, k = flat.shape
    grid = spec.grid(n, k)
    if values.numel() != grid[0] * grid[1]:
        raise FormatError(
            f"A {spec} tensor [{n}, {k}] has a scale of shape {tuple(values.shape)}.",
            why=[f"its grid is {grid}"],
            todo="Give one scale for each tile.",
        )
    return values if values.shape == grid else values.reshape(grid)


def _shaped(flat: Quantized, x: Tensor, spec: QuantSpec) -> Quantized:
    """Return ``flat`` with the leading dimensions of ``x``."""
    if x.dim() == 2:
        return flat
    grid = (*x.shape[:-1], flat.scale.shape[1]) if spec.rows == 1 else flat.scale.shape
    return Quantized(
        codes=flat.codes.view(x.shape),
        scale=flat.scale.view(grid),
        zero=None if flat.zero is None else flat.zero.view(grid),
    )
