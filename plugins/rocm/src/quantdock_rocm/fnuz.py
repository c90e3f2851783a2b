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


def convert_weight(weight: CanonicalWeight) -> CanonicalWeight:
    """Return the same real weight in e4m3fnuz codes; static input scales double with it.

    Raises:
        FormatError: it has been converted before.
    """
    from quantdock.numerics.fnuz import double_scale

    scale = weight.input_scale
    return replace(
        weight,
        segments=tuple(map(_convert_segment, weight.segments)),
        input_scale=None if scale is None else double_scale(scale),
    )


def _convert_segment(segment: Segment) -> Segment:
    from quantdock.numerics.fnuz import to_fnuz

    codes, scale = to_fnuz(segment.codes, segment.scale)
    return replace(segment, spec=replace(segment.spec, element=EXECUTED), codes=codes, scale=scale)


def _exchange(scheme: Scheme, old: str, new: str) -> Scheme:
    def change(spec: QuantSpec) -> QuantSpec:
        return replace(spec, element=new) if spec.element == old else spec

    activation = scheme.activation
    return Scheme(
        weight=change(scheme.weight), activation=None if activation is None else change(activation)
    )
