"""Folding: the scales of fused shards become one, or one per row, for kernels that want that."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from quantdock.errors import FormatError
from quantdock.numerics import CanonicalWeight, Segment, quantize

_RULES = {"max": torch.amax, "min": torch.amin}


def expand_channelwise(weight: CanonicalWeight) -> CanonicalWeight:
    """Return ``weight`` with each per-tensor scale repeated for its rows; exact.

    Raises:
        FormatError: a segment has tiles of another form.
    """
    _demand_per_tensor(weight, "repeated for the rows")
    return replace(weight, segments=tuple(_by_row(s) for s in weight.segments))


def _by_row(segment: Segment) -> Segment:
    rows = segment.codes.shape[0]
    return replace(
        segment,
        spec=replace(segment.spec, rows=1),
        scale=segment.scale.expand(rows, 1).contiguous(),
        zero=None if segment.zero is None else segment.zero.expand(rows, 1).contiguous(),
    )


def requantize_with_max(weight: CanonicalWeight) -> CanonicalWeight:
    """Return ``weight`` with one scale for all segments, by the fold rule of its spec.

    Segments that have that scale keep their codes. The others are quantized again, which rounds
    and is recorded in ``value_steps``. The rule "max" never saturates.

    Raises:
        FormatError: a segment is not per-tensor or has a zero point; the rule is "same" and the
            scales differ.
    """
    _demand_per_tensor(weight, "folded")
    scales = torch.cat([s.scale.reshape(1) for s in weight.segments])
    if bool((scales == scales[0]).all()):
        return weight
    rule = weight.segments[0].spec.fold
    if rule not in _RULES:
        raise FormatError(
            f"The scales of {len(scales)} fused shards differ and the format lets none replace "
            "the others.",
            why=[f"they are {scales.tolist()}, fold={rule!r}"],
            todo="Choose a kernel that takes one scale per row, or load the shards unfused.",
        )
    one = _RULES[rule](scales, dim=0)
    return replace(
        weight,
        segments=tuple(_requantize(s, one) for s in weight.segments),
        value_steps=(
            *weight.value_steps,
            f"requantized {len(scales)} shards to the {rule} of their scales",
        ),
    )


def _requantize(segment: Segment, one: Tensor) -> Segment:
    if bool(segment.scale == one):
        return segment
    scale = one.reshape(1, 1)
    codes = quantize(segment.dequantize(), segment.spec, scale=scale).codes
    return replace(segment, codes=codes, scale=scale)


def _demand_per_tensor(weight: CanonicalWeight, step: str) -> None:
    wrong = [
        f"segment {i} is {s.spec}"
        for i, s in enumerate(weight.segments)
        if s.spec.granularity != "tensor"
    ]
    if wrong:
        raise FormatError(
            f"Only a scale per tensor can be {step}.",
            why=wrong,
            todo="Prepare tiles of other forms without folding.",
        )
