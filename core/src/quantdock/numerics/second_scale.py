"""Two levels of scales as one, and fused shards under one second scale.

Shards of a fused layer were quantized apart, so their second scales differ. ``join`` keeps them
apart, which is exact. A kernel that has room for one asks for ``fold_second_scales``.

>>> import torch
>>> from quantdock.formats import parse_spec
>>> from quantdock.numerics.canonical import join, quantize_weight
>>> spec = parse_spec("fp4_e2m1[1x16]:e4m3:second[*x*]")
>>> x = torch.randn(8, 32)
>>> weight = join([quantize_weight(x, spec), quantize_weight(4 * x, spec)])
>>> folded = fold_second_scales(weight)
>>> [bool(s.second_scale == weight.segments[1].second_scale) for s in folded.segments]
[True, True]
>>> folded.value_steps, torch.equal(folded.dequantize(), weight.dequantize())
((), True)
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from quantdock.errors import FormatError
from quantdock.numerics.canonical import CanonicalWeight, Segment
from quantdock.numerics.quantize import quantize
from quantdock.numerics.scales import fit_scale
from quantdock.numerics.tiles import on_first_grid


def combine_scales(segment: Segment) -> Segment:
    """Return ``segment`` with one level of f32 scales, the products of both; exact."""
    if segment.second_scale is None:
        return segment
    return replace(
        segment,
        spec=replace(segment.spec, scale="f32", rounding="exact", second=None),
        scale=segment.scale * _per_tile(segment),
        second_scale=None,
    )


def fold_second_scales(weight: CanonicalWeight) -> CanonicalWeight:
    """Return ``weight`` with the same second scale in all segments, of which each has one.

    The ratio to the common one goes into the first scales. Of the segments' own second scales the
    first one that leaves all values as they are is taken, beginning with that of the spec's fold
    rule. If there is none, the rule's is taken, first scales are rounded to what the spec stores,
    codes follow, and ``value_steps`` says so.

    Raises:
        FormatError: a segment has no second scale, or several; the rule is "same" and no second
            scale is exact.
    """
    seconds = [_only_second(segment, index) for index, segment in enumerate(weight.segments)]
    if len(set(seconds)) == 1:
        return weight
    rule = weight.segments[0].spec.fold
    candidates = sorted(set(seconds), reverse=rule != "min")
    for second in candidates:
        moved = [_under(segment, second) for segment in weight.segments]
        if not any(lost for _, lost in moved):
            return replace(weight, segments=tuple(segment for segment, _ in moved))
    if rule == "same":
        raise FormatError(
            f"The second scales of {len(seconds)} fused shards differ, and no one of them serves "
            "all shards exactly.",
            why=[f"they are {seconds}"],
            todo="Choose a kernel that takes one for each shard, or load the shards unfused.",
        )
    moved = [_under(segment, candidates[0]) for segment in weight.segments]
    step = (
        f"folded {len(seconds)} second scales to their {rule}: {sum(lost for _, lost in moved):,} "
        f"of {sum(s.scale.numel() for s in weight.segments):,} first scales were rounded"
    )
    return replace(
        weight,
        segments=tuple(segment for segment, _ in moved),
        value_steps=(*weight.value_steps, step),
    )


def _only_second(segment: Segment, index: int) -> float:
    second = segment.second_scale
    if second is None or second.numel() != 1:
        raise FormatError(
            "Only second scales of whole shards can become one.",
            why=[f"segment {index} is {segment.spec}"],
            todo="Prepare tiles of other forms without folding.",
        )
    return float(second)


def _under(segment: Segment, second: float) -> tuple[Segment, int]:
    """Return the segment with ``second`` for its second scale, and how many scales changed."""
    given = segment.scale.new_full((1, 1), second)
    wanted = segment.scale * _per_tile(segment)
    scale = torch.where(wanted == 0, wanted, fit_scale(wanted / given, segment.spec))
    lost = int((scale * given != wanted).sum())
    codes = segment.codes
    if lost:
        real = segment.dequantize()
        codes = quantize(real, segment.spec, scale, second_scale=given).codes
    return replace(segment, codes=codes, scale=scale, second_scale=given), lost


def _per_tile(segment: Segment) -> Tensor:
    """Return the second scale so that it multiplies the first."""
    if segment.second_scale is None:
        return segment.scale.new_ones(1, 1)
    rows, columns = segment.scale.shape
    return on_first_grid(segment.second_scale, segment.spec, (rows, columns))
