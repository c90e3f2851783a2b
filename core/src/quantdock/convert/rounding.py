"""Round to nearest: how convert quantizes, from the values of a weight alone.

Integers follow compressed-tensors and GPTQ: a symmetric scale spreads the largest magnitude over
half of all codes (amax / 7.5 in 4 bits, so that the largest itself is clipped by half a step at
most); with zero points, the span over all codes. The scale is rounded to the dtype in which it is
stored before codes are chosen, so that what is stored is what they mean.

>>> import torch
>>> from quantdock.formats import parse_spec
>>> weight = round_weight(torch.tensor([[7.5, -3.0, 0.4]]), parse_spec("int4[1x*]"), "float16")
>>> weight.segments[0].scale.tolist(), weight.segments[0].codes.tolist()
([[1.0]], [[7, -3, 0]])
"""

from __future__ import annotations

import torch
from torch import Tensor

from quantdock.errors import FormatError
from quantdock.formats import ELEMENTS, QuantSpec
from quantdock.numerics import (
    SMALLEST_SCALE,
    CanonicalWeight,
    Segment,
    choose_second_divisor,
    choose_second_scale,
    quantize,
    tile_amax,
    tile_range,
    torch_dtype,
)


def round_weight(
    values: Tensor,
    spec: QuantSpec,
    scale_dtype: str,
    *,
    amax: Tensor | None = None,
    divides: bool = False,
) -> CanonicalWeight:
    """Return ``values`` [N, K] quantized to ``spec``; ``scale_dtype`` holds its scales exactly.

    Args:
        amax: the largest magnitude of all layers that share a second scale; None: of these values.
        divides: files store the divisor that a second scale is the reciprocal of.
    Raises:
        FormatError: integers were asked for, and a scale is no finite number of that dtype.
    """
    if ELEMENTS[spec.element].is_float:
        second = None if spec.second is None else _second(values, spec, amax, divides)
        made = quantize(values, spec, second_scale=second)
        segment = Segment(
            spec=spec, codes=made.codes, scale=made.scale, second_scale=made.second_scale
        )
        return CanonicalWeight(segments=(segment,))
    scale, zero = _choose(values, spec, torch_dtype(scale_dtype))
    made = quantize(values, spec, scale, zero)
    segment = Segment(spec=spec, codes=made.codes, scale=made.scale, zero=made.zero)
    return CanonicalWeight(segments=(segment,))


def _second(values: Tensor, spec: QuantSpec, amax: Tensor | None, divides: bool) -> Tensor:
    largest = values.abs().amax() if amax is None else amax
    largest = largest.to(torch.float32).reshape(1, 1)
    if divides:
        return choose_second_divisor(largest, spec).reciprocal()
    return choose_second_scale(largest, spec)


def _choose(values: Tensor, spec: QuantSpec, dtype: torch.dtype) -> tuple[Tensor, Tensor | None]:
    """Return scale (f32, values of ``dtype``) and zero point (int32) of each tile."""
    element = ELEMENTS[spec.element]
    steps = element.largest - element.lowest
    if not spec.zero:
        return _stored(tile_amax(values, spec) / (steps / 2), dtype), None
    low, high = tile_range(values, spec)
    scale = _stored((high - low) / steps, dtype)
    zero = (element.lowest - low / scale).round().clamp(element.lowest, element.largest)
    return scale, zero.to(torch.int32)


def _stored(scale: Tensor, dtype: torch.dtype) -> Tensor:
    """Return ``scale`` rounded to ``dtype``, at least its smallest number; as f32."""
    numbers = torch.finfo(dtype)
    smallest = max(numbers.tiny * numbers.eps, SMALLEST_SCALE)
    rounded = scale.clamp(min=smallest).to(dtype).to(torch.float32)
    if not bool(rounded.isfinite().all()):
        worst = scale[~rounded.isfinite()][0].item()
        raise FormatError(
            f"A scale would be {worst:g}, which {str(dtype).removeprefix('torch.')} cannot hold.",
            why=["the weight has values that are too large, or no numbers"],
            todo="Correct the weight, or leave the layer as it is (--ignore).",
        )
    return rounded
