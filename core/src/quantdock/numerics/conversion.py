"""From one format into another: exact where the target has room, else counted and said.

>>> import torch
>>> from quantdock.formats import parse_spec
>>> from quantdock.numerics.canonical import quantize_weight
>>> mx = quantize_weight(torch.randn(128, 256), parse_spec("fp4_e2m1[1x32]:e8m0:even"))
>>> block = requantize(mx, parse_spec("fp8_e4m3[128x128]"))
>>> torch.equal(block.dequantize(), mx.dequantize()), block.value_steps
(True, ())
>>> str(recode(mx, "fp8_e4m3").segments[0].spec)
'fp8_e4m3[1x32]:e8m0:even'
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

import torch
from torch import Tensor

from quantdock.errors import FormatError
from quantdock.formats import QuantSpec
from quantdock.numerics.canonical import CanonicalWeight, Segment, quantize_weight
from quantdock.numerics.cast import decode, encode
from quantdock.numerics.second_scale import combine_scales


def requantize(weight: CanonicalWeight, spec: QuantSpec) -> CanonicalWeight:
    """Return ``weight`` in another format, such as MXFP8 as fp8 in blocks, or experts' FP4 as fp8.

    Where each new tile lies in one of the old, codes stay and scales are repeated: every value is
    kept. Else, where all scales are powers of two, the new ones are so too, each as small as its
    tile allows. So every value stays as it is, except those too small for the new element beside
    the largest of their tile. ``value_steps`` counts the values that changed; without an entry none
    did.
    """
    made = [_requantized(segment, spec) for segment in weight.segments]
    changed = sum(count for _, count, _ in made)
    step = (
        f"requantized to {spec}: {changed:,} of {prod(weight.shape):,} values changed, "
        f"by {max(most for _, _, most in made):.2g} at most"
    )
    return replace(
        weight,
        segments=tuple(segment for segment, _, _ in made),
        value_steps=(*weight.value_steps, *[step] * (changed > 0)),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """How many of the values of a weight changed; ``largest``: by which part of itself at most.

    >>> str(Change(num_values=2000, num_changed=3, largest=0.062))
    '3 of 2,000 values changed (0.15 %), by 6.2 % of themselves at most'
    """

    num_values: int
    num_changed: int
    largest: float

    @property
    def share(self) -> float:
        """Return the part of the values that changed."""
        return self.num_changed / max(self.num_values, 1)

    def __str__(self) -> str:
        return (
            f"{self.num_changed:,} of {self.num_values:,} values changed "
            f"({100 * self.share:.3g} %), by {100 * self.largest:.3g} % of themselves at most"
        )


def compare_weights(before: CanonicalWeight, after: CanonicalWeight) -> Change:
    """Return what the real values of ``after`` have that those of ``before`` have not."""
    old, new = before.dequantize(), after.dequantize()
    changed = (old != new) & ~(old.isnan() & new.isnan())
    parts = ((old - new).abs() / old.abs())[changed]
    return Change(
        num_values=old.numel(),
        num_changed=int(changed.sum()),
        largest=float(parts.max()) if parts.numel() else 0.0,
    )


def recode(weight: CanonicalWeight, element: str) -> CanonicalWeight:
    """Return ``weight`` with each code as the same number of another element; scales stay.

    So int4 weights become fp8_e4m3 numbers for a product with fp8 activations, and MXFP4 becomes
    MXFP8. Zero points are subtracted: ``code - zero`` is the new code.

    Raises:
        FormatError: the element lacks one of the numbers.
    """
    return replace(weight, segments=tuple(_recoded(s, element) for s in weight.segments))


def _requantized(segment: Segment, spec: QuantSpec) -> tuple[Segment, int, float]:
    """Return the segment in ``spec``, how many of its values changed, and by how much at most."""
    if (same := _refined(segment, spec)) is not None:
        return same, 0, 0.0
    before = segment.dequantize()
    powers = _are_powers_of_two(combine_scales(segment).scale)
    rule = replace(spec, rounding="ceil") if powers and spec.rounding == "exact" else spec
    made = quantize_weight(before, rule).segments[0]
    after = replace(made, spec=spec)
    now = after.dequantize()
    changed = (before != now) & ~(before.isnan() & now.isnan())
    most = (before - now)[changed].abs()
    return after, int(changed.sum()), float(most.max()) if most.numel() else 0.0


def _refined(segment: Segment, spec: QuantSpec) -> Segment | None:
    """Return the segment in tiles that lie in its own, codes the same numbers; None: it has none.

    Scales of the new kind have to hold the old ones.
    """
    old = combine_scales(segment)
    (n, k), was = old.codes.shape, old.spec
    fits = _divides(spec.rows, was.rows) and _divides(spec.cols, was.cols)
    is_plain = not (was.act_order or spec.act_order or spec.zero or spec.second)
    if not fits or not is_plain or spec.scale not in ("f32", was.scale):
        return None
    try:
        recoded = old if was.element == spec.element else _recoded(old, spec.element)
    except FormatError:
        return None
    if recoded.zero is not None:
        return None
    rows, columns = spec.grid(n, k)
    row = torch.arange(rows) * (spec.rows or n) // (was.rows or n or 1)
    column = torch.arange(columns) * (spec.cols or k) // (was.cols or k or 1)
    scale = recoded.scale[row][:, column].contiguous()
    return Segment(spec=spec, codes=recoded.codes, scale=scale)


def _divides(new: int | None, old: int | None) -> bool:
    """Return whether parts of ``new`` numbers lie in parts of ``old``; None: all of them."""
    return old is None or (new is not None and old % new == 0)


def _recoded(segment: Segment, element: str) -> Segment:
    ones = torch.ones_like(segment.scale)
    second = segment.second_scale
    plain = replace(
        segment, scale=ones, second_scale=None if second is None else torch.ones_like(second)
    )
    numbers = plain.dequantize()
    codes = encode(numbers, element)
    wrong = decode(codes, element) != numbers
    if bool(wrong.any()):
        raise FormatError(
            f"{int(wrong.sum()):,} of {wrong.numel():,} codes of {segment.spec} have no {element} "
            "code of the same number.",
            why=[f"the first is {numbers[wrong][0].item()!r}"],
            todo="Requantize instead, which rounds and says so.",
        )
    spec = replace(segment.spec, element=element, zero=False)
    return replace(segment, spec=spec, codes=codes, zero=None)


def _are_powers_of_two(scale: Tensor) -> bool:
    mantissa = torch.frexp(scale.abs()).mantissa
    return bool(((mantissa == 0.5) | (scale == 0)).all())
