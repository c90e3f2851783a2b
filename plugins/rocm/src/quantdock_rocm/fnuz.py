"""fp8 in the fnuz encodings: which schemes gfx94x runs, and weights brought to them exactly.

The bits of an e4m3fn code mean half as much in e4m3fnuz, so codes stay and scales double; the real
values are the same bit for bit, except that -0 becomes 0. Quantizing at load takes the same way:
the weight is quantized to e4m3fn (largest code 448) and converted (224), not quantized anew to the
240 that e4m3fnuz reaches. So one checkpoint has one set of weights on every device, loaded or
quantized at load, at the price of the topmost 7 % of the range.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from quantdock.formats import QuantSpec
from quantdock.schemes import Scheme

if TYPE_CHECKING:
    from quantdock.numerics.canonical import CanonicalWeight, Segment

STORED = "fp8_e4m3"
EXECUTED = "fp8_e4m3fnuz"


def as_executed(scheme: Scheme) -> Scheme:
    """Return the scheme as the device runs it: e4m3fnuz wherever it says e4m3."""
    return _exchange(scheme, STORED, EXECUTED)


def as_stored(scheme: Scheme) -> Scheme:
    """Return the scheme as checkpoints store it, the inverse of ``as_executed``."""
    return _exchange(scheme, EXECUTED, STORED)


def convert_weight(weight: CanonicalWeight, scheme: Scheme) -> CanonicalWeight:
    """Return the same real weight as ``scheme`` runs it: in e4m3fnuz codes where it says so.

    Static input scales double where inputs are in e4m3fnuz. Integers stay as they are.

    Raises:
        FormatError: it has been converted before.
    """
    from quantdock.numerics.fnuz import double_scale

    segments, scale = weight.segments, weight.input_scale
    if scheme.weight.element == EXECUTED:
        segments = tuple(map(_convert_segment, segments))
    if scale is not None and scheme.activation and scheme.activation.element == EXECUTED:
        scale = double_scale(scale)
    return replace(weight, segments=segments, input_scale=scale)


def _convert_segment(segment: Segment) -> Segment:
    from quantdock.numerics.fnuz import to_fnuz

    codes, scale = to_fnuz(segment.codes, segment.scale)
    return replace(segment, spec=replace(segment.spec, element=EXECUTED), codes=codes, scale=scale)


def _exchange(scheme: Scheme, old: str, new: str) -> Scheme:
    def change(spec: QuantSpec) -> QuantSpec:
        return replace(spec, element=new) if spec.element == old else spec

    activation = scheme.activation
    return replace(
        scheme,
        weight=change(scheme.weight),
        activation=None if activation is None else change(activation),
    )
