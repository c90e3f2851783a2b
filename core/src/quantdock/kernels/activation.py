"""Quantized activations as f32 numbers: scaled, rounded to the element's grid, never packed.

A reference has no use for packed codes, and rounding f32 to a grid by adding and subtracting a
large number takes five vector passes, where a cast to float8 and back goes element by element. The
numbers are those of ``numerics.quantize``, bit for bit.

>>> import torch
>>> round_to_element_(torch.tensor([17.0, 19.0, 0.003, 460.0]), "fp8_e4m3").tolist()
[16.0, 20.0, 0.00390625, 448.0]
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from quantdock.formats import ELEMENTS, QuantSpec
from quantdock.numerics import (
    SMALLEST_SCALE,
    choose_scale,
    choose_scale_and_zero,
    decode,
    dequantize,
    fold_input,
    quantize,
)

_EXPONENT = 0x7F800000  # the exponent field of f32
_ROUNDER = 1.5 * 2.0**23  # adding it to |v| < 2^22 rounds v to whole numbers, ties to even


@dataclass(frozen=True, slots=True)
class Whole:
    """What all of x is quantized with."""

    scale: Tensor  # f32 [1, 1]
    zero: Tensor | None = None  # f32 [1, 1]


def whole_range(
    x: Tensor, spec: QuantSpec | None, input_scale: Tensor | None, input_zero: Tensor | None
) -> Whole | None:
    """Return the one scale, and zero point, of all of ``x``; None if it has none or many.

    Args:
        input_scale: f32, one per fused shard, where the spec is static; see ``fold_input``.
        input_zero: int32, as input_scale, where the spec has a zero point.
    """
    if spec is None:
        return None
    if input_scale is not None:
        return _as_whole(*fold_input(input_scale, input_zero, spec))
    if spec.granularity != "tensor":
        return None
    return _as_whole(*_chosen(x.float(), spec, dims=(0, 1)))


def _as_whole(scale: Tensor, zero: Tensor | None) -> Whole:
    return Whole(scale.reshape(1, 1), None if zero is None else zero.reshape(1, 1).float())


def quantize_rows(x: Tensor, spec: QuantSpec, whole: Whole | None) -> tuple[Tensor, Tensor | None]:
    """Return what ``x`` becomes, and the factor of its rows that is still to be multiplied.

    Shapes:
        x: float [M, K], unchanged. whole: from ``whole_range``.
        Returns f32 [M, K], ``code - zero``, and f32 [M, 1] or [1, 1]; None where groups of columns
        have own scales, which are multiplied already.
    """
    values = x.to(torch.float32)
    if whole is not None:
        # A stored scale of 0 marks zeros; 0 / 0 would be NaN.
        scale = whole.scale.clamp(min=SMALLEST_SCALE)
        return _codes(values, scale, whole.zero, spec), whole.scale
    if spec.cols is None or spec.cols >= x.shape[1]:
        scale, zero = _chosen(values, spec, dims=(-1,))
        return _codes(values, scale, zero, spec), scale
    missing = -x.shape[1] % spec.cols
    padded = pad(values, (0, missing)) if missing else values
    groups = padded.reshape(x.shape[0], -1, spec.cols)
    scale, zero = _chosen(groups, spec, dims=(-1,))
    return _codes(groups, scale, zero, spec).mul_(scale).flatten(1)[:, : x.shape[1]], None


def decode_rows(codes: Tensor, scale: Tensor, spec: QuantSpec) -> tuple[Tensor, Tensor | None]:
    """Return what ``quantize_rows`` returns for the x [M, K] that these codes and scales encode."""
    if spec.granularity == "tensor" or spec.cols is None or spec.cols >= codes.shape[1]:
        return decode(codes, spec.element), scale
    return dequantize(codes, scale, spec), None


def two_levels(x: Tensor, spec: QuantSpec, input_scale: Tensor | None) -> Tensor:
    """Return f32 ``x`` [M, K] quantized and decoded by a spec with a second scale over all of it.

    Args:
        input_scale: f32, the static second scale of each fused shard; None: it is dynamic.
    """
    second = None if input_scale is None else fold_input(input_scale, None, spec)[0]
    made = quantize(x, spec, second_scale=second)
    values = dequantize(made.codes, made.scale, spec, second_scale=made.second_scale)
    return torch.where(x.isnan(), torch.nan, values)


def _chosen(values: Tensor, spec: QuantSpec, dims: tuple[int, ...]) -> tuple[Tensor, Tensor | None]:
    """Return the dynamic scale, and zero point, of f32 ``values`` over ``dims``."""
    low, high = values.amin(dims, keepdim=True), values.amax(dims, keepdim=True)
    if not spec.zero:
        return choose_scale(torch.maximum(-low, high), spec), None
    return choose_scale_and_zero(low.clamp(max=0.0), high.clamp(min=0.0), spec)


def _codes(values: Tensor, scale: Tensor, zero: Tensor | None, spec: QuantSpec) -> Tensor:
    """Return ``code - zero`` of f32 ``values``, in memory of its own."""
    scaled = values / scale
    if zero is None:
        return round_to_element_(scaled, spec.element)
    return round_to_element_(scaled.round_().add_(zero), spec.element).sub_(zero)


def round_to_element_(values: Tensor, element: str) -> Tensor:
    """Round f32 ``values`` in place to the numbers that ``element`` has, ties to even.

    Out of range becomes the last finite number; NaN stays NaN, in integer elements too.
    """
    kind = ELEMENTS[element]
    values.clamp_(kind.lowest, kind.largest)
    if not kind.is_float:
        return values.round_()
    binade = values.view(torch.int32).bitwise_and(_EXPONENT).view(torch.float32)
    rounder = binade.clamp_(min=2.0**kind.lowest_exponent).mul_(_ROUNDER * 2.0**-kind.fraction_bits)
    return values.add_(rounder).sub_(rounder)
