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

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from quantdock.errors import FormatError
from quantdock.formats import QuantSpec, SecondScale
from quantdock.numerics.cast import decode, element_of, encode
from quantdock.numerics.dtypes import torch_dtype
from quantdock.numerics.scales import (
    SMALLEST_SCALE,
    choose_scale,
    choose_scale_and_zero,
    choose_second_scale,
    decode_scale,
)
from quantdock.numerics.tiles import (
    as_tiles,
    by_regions,
    on_first_grid,
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
        second_scale: f32 ``spec.second.grid``, likewise.
    """

    codes: Tensor
    scale: Tensor
    zero: Tensor | None = None
    second_scale: Tensor | None = None


def quantize(
    x: Tensor,
    spec: QuantSpec,
    scale: Tensor | None = None,
    zero: Tensor | None = None,
    *,
    second_scale: Tensor | None = None,
) -> Quantized:
    """Return ``x`` as codes: x / scale (true division in f32), nearest code, ties to even.

    Values out of range, and infinities, become the last finite code. NaN makes the scale of its
    tile NaN, and with a given scale the float codes themselves.

    Shapes:
        x: f32, bf16 or f16 [N, K]; also [..., K] unless tiles have more than one row.
    Args:
        scale: a static scale >= 0, in any shape of the grid's size; None computes it from ``x``.
        zero: the static zero point, given with ``scale`` where the spec has one.
        second_scale: the second scale, needed with ``scale`` where the spec has two levels; given
            alone, first scales are computed under it.
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
    if scale is None:
        second_scale = _second_of(flat, spec, second_scale)
        scale, zero = _chosen(flat, spec, second_scale)
    else:
        scale = _as_grid(decode_scale(scale), spec, flat)
        zero = None if zero is None else _as_grid(zero.to(torch.int32), spec, flat)
        second_scale = _as_second(second_scale, spec, flat)
    divisor = _combined(scale, second_scale, spec).clamp(min=SMALLEST_SCALE)  # 0 marks zeros
    storage = torch_dtype(element_of(spec.element).storage)
    grids = (divisor,) if zero is None else (divisor, zero)

    def work(region: Tensor, scale: Tensor, zero: Tensor | None = None) -> Tensor:
        tiles = as_tiles(region.to(torch.float32), spec) / on_tiles(scale)
        if zero is not None:
            tiles.round_().add_(on_tiles(zero))
        return encode(tiles, spec.element).view(torch.uint8).reshape(region.shape)

    # As bytes: torch.compile cannot assign to a slice of a float8 tensor.
    codes = by_regions(work, flat, spec, torch.uint8, *grids).view(storage)
    made = Quantized(codes=codes, scale=scale, zero=zero, second_scale=second_scale)
    return _shaped(made, x, spec)


def dequantize(
    codes: Tensor,
    scale: Tensor,
    spec: QuantSpec,
    *,
    zero: Tensor | None = None,
    second_scale: Tensor | None = None,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """Return the real values ``scale * (codes - zero)``: exact codes, one f32 product, one cast.

    Where the spec has two levels, both scales are multiplied first, in f32.

    Shapes:
        codes: [N, K]; also [..., K] unless tiles have more than one row. scale: any shape of the
        grid's size, in any storage (see decode_scale). zero: as scale. second_scale: any shape of
        its own grid's size. Returns codes' shape.
    Raises:
        FormatError: shapes or dtypes do not fit the spec.
    """
    flat = _as_matrix(codes, spec)
    scale = _as_grid(decode_scale(scale), spec, flat)
    grids = [_combined(scale, _as_second(second_scale, spec, flat), spec)]
    if zero is not None:
        grids.append(_as_grid(zero, spec, flat))

    def work(region: Tensor, scale: Tensor, zero: Tensor | None = None) -> Tensor:
        tiles = as_tiles(decode(region, spec.element), spec)
        if zero is not None:
            tiles.sub_(on_tiles(zero))
        return tiles.mul_(on_tiles(scale)).reshape(region.shape).to(dtype)

    return by_regions(work, flat, spec, dtype, *grids).view(codes.shape)


def _chosen(flat: Tensor, spec: QuantSpec, second: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Return scale and zero point that suit the values, under a second scale if there is one."""
    if spec.zero:
        return choose_scale_and_zero(*tile_range(flat, spec), spec)
    amax = tile_amax(flat, spec)
    per_tile = None if second is None else on_first_grid(second, spec, spec.grid(*flat.shape))
    return choose_scale(amax, spec, per_tile), None


def _second_of(flat: Tensor, spec: QuantSpec, given: Tensor | None) -> Tensor | None:
    """Return the second scale: as given, or one that suits the values."""
    if given is not None or spec.second is None:
        return _as_second(given, spec, flat)
    return choose_second_scale(tile_amax(flat, _coarse(spec, spec.second)), spec)


def _combined(scale: Tensor, second: Tensor | None, spec: QuantSpec) -> Tensor:
    if second is None:
        return scale
    return scale * on_first_grid(second, spec, (scale.shape[0], scale.shape[1]))


def _as_second(given: Tensor | None, spec: QuantSpec, flat: Tensor) -> Tensor | None:
    """Return a second scale as the grid that the spec says it has, f32."""
    if (given is None) is not (spec.second is None):
        raise FormatError(
            f"{spec} was given {'no' if given is None else 'a'} second scale.",
            why=["a spec with two levels of scales needs both, one with one level has no second"],
            todo="Pass the tensor that the checkpoint stores, or use the spec that fits.",
        )
    if given is None or spec.second is None:
        return None
    return _as_grid(decode_scale(given), _coarse(spec, spec.second), flat)


def _coarse(spec: QuantSpec, second: SecondScale) -> QuantSpec:
    """Return a spec of one level with the tiles of the second."""
    return replace(spec, rows=second.rows, cols=second.cols, second=None)


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
    second, level = flat.second_scale, spec.second
    return Quantized(
        codes=flat.codes.view(x.shape),
        scale=_led(flat.scale, x, spec.rows),
        zero=None if flat.zero is None else _led(flat.zero, x, spec.rows),
        second_scale=None if second is None else _led(second, x, level.rows if level else None),
    )


def _led(grid: Tensor, x: Tensor, rows: int | None) -> Tensor:
    return grid.view(*x.shape[:-1], grid.shape[1]) if rows == 1 else grid
