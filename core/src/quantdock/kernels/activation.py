"""Quantized activations as f32 numbers: scaled, rounded to the element's grid, never packed.

A reference has no use for packed codes, and rounding f32 to a grid by adding and subtracting a
large number takes five vector passes, where a cast to float8 and back goes element by element. The
numbers are those of ``numerics.quantize``, bit for bit.

>>> import torch
>>> round_to_element_(torch.tensor([17.0, 19.0, 0.003, 460.0]), "fp8_e4m3").tolist()
[16.0, 20.0, 0.00390625, 448.0]
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from quantdock.formats import ELEMENTS, QuantSpec
from quantdock.numerics import SMALLEST_SCALE, choose_scale

_EXPONENT = 0x7F800000  # the exponent field of f32
_ROUNDER = 1.5 * 2.0**23  # adding it to |v| < 2^22 rounds v to whole numbers, ties to even


def whole_scale(x: Tensor, spec: QuantSpec | None, input_scale: Tensor | None) -> Tensor | None:
    """Return the one scale of all of ``x`` as f32 [1, 1], or None if it has none or many.

    Args:
        input_scale: f32, one per fused shard, where the spec is static; they fold to the maximum.
    """
    if input_scale is not None:
        return input_scale.amax().reshape(1, 1)
    if spec is None or spec.granularity != "tensor":
        return None
    low, high = x.aminmax()
    return choose_scale(torch.maximum(-low, high).float(), spec).reshape(1, 1)


def quantize_rows(x: Tensor, spec: QuantSpec, whole: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Return what ``x`` becomes, and the factor of its rows that is still to be multiplied.

    Shapes:
        x: float [M, K], unchanged. whole: f32 [1, 1] from ``whole_scale``.
        Returns f32 [M, K] and f32 [M, 1] or [1, 1]; None where groups of columns have own scales,
        which are multiplied already.
    """
    values = x.to(torch.float32)
    if whole is not None:
        # A stored scale of 0 marks zeros; 0 / 0 would be NaN.
        return _codes(values, whole.clamp(min=SMALLEST_SCALE), spec), whole
    if spec.cols is None or spec.cols >= x.shape[1]:
        scale = choose_scale(values.abs().amax(-1, keepdim=True), spec)
        return _codes(values, scale, spec), scale
    missing = -x.shape[1] % spec.cols
    padded = pad(values, (0, missing)) if missing else values
    groups = padded.reshape(x.shape[0], -1, spec.cols)
    scale = choose_scale(groups.abs().amax(-1, keepdim=True), spec)
    return _codes(groups, scale, spec).mul_(scale).flatten(1)[:, : x.shape[1]], None


def _codes(values: Tensor, scale: Tensor, spec: QuantSpec) -> Tensor:
    return round_to_element_(values / scale, spec.element)


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
