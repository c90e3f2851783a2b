from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from quantdock.errors import FormatError
from quantdock.formats import parse_spec
from quantdock.numerics import (
    CanonicalWeight,
    combine_scales,
    encode_scale,
    fold_second_scales,
    join,
    quantize_weight,
)

NVFP4 = parse_spec("fp4_e2m1[1x16]:e4m3:second[*x*]")


def shards(*sizes, spec=NVFP4, seed=0):
    x = torch.randn(8, 64, generator=torch.Generator().manual_seed(seed))
    return join([quantize_weight(x * size, spec) for size in sizes])


def with_seconds(weight, *seconds):
    parts = zip(weight.segments, seconds, strict=True)
    return replace(
        weight,
        segments=tuple(replace(s, second_scale=torch.full((1, 1), v)) for s, v in parts),
    )


@pytest.mark.parametrize(
    "text", ["fp4_e2m1[1x16]:e4m3:second[*x*]", "int8[2x16]:second[4x32]", "fp8_e4m3[1x*]"]
)
def test_two_levels_become_one_of_the_same_values(text):
    (segment,) = quantize_weight(torch.randn(10, 80), parse_spec(text)).segments
    one = combine_scales(segment)
    assert one.spec.second is None and one.second_scale is None
    assert torch.equal(one.dequantize(), segment.dequantize())


@pytest.mark.parametrize("sizes", [(1.0, 4.0), (2.0, 0.5, 1.0), (1.0, 1.0)])
def test_powers_of_two_between_shards_fold_exactly(sizes):
    weight = shards(*sizes)
    folded = fold_second_scales(weight)
    seconds = {float(s.second_scale) for s in folded.segments}
    assert seconds == {max(float(s.second_scale) for s in weight.segments)}
    assert folded.value_steps == ()
    assert torch.equal(folded.dequantize(), weight.dequantize())
    for old, new in zip(weight.segments, folded.segments, strict=True):
        assert torch.equal(old.codes, new.codes)
        encode_scale(new.scale, "float8_e4m3fn")


def test_the_rule_gives_way_to_a_second_scale_that_is_exact():
    """Under the larger one the smallest first scale would be less than e4m3 holds."""
    weight = shards(1.0, 1.0)
    small, large = weight.segments
    small = replace(small, scale=torch.full_like(small.scale, 2.0**-9))
    large = replace(large, scale=torch.full_like(large.scale, 2.0))
    weight = with_seconds(CanonicalWeight(segments=(small, large)), 0.5, 1.0)
    folded = fold_second_scales(weight)
    assert [float(s.second_scale) for s in folded.segments] == [0.5, 0.5]
    assert folded.value_steps == ()
    assert torch.equal(folded.dequantize(), weight.dequantize())


def test_other_ratios_are_rounded_and_said():
    weight = replace(shards(1.0, 3.0), value_steps=("before",))
    folded = fold_second_scales(weight)
    largest = float(weight.segments[1].second_scale)
    assert [float(s.second_scale) for s in folded.segments] == [largest, largest]
    before, step = folded.value_steps
    assert before == "before"
    old, new = weight.segments[0], folded.segments[0]
    rounded = int((new.scale * largest != old.scale * old.second_scale).sum())
    assert rounded > 0
    assert step == (
        f"folded 2 second scales to their max: {rounded} of 64 first scales were rounded"
    )
    encode_scale(new.scale, "float8_e4m3fn")
    change = (folded.dequantize() - weight.dequantize()).abs()
    assert 0 < change.max() <= weight.dequantize()[:8].abs().max() / 16
    assert torch.equal(folded.segments[1].codes, weight.segments[1].codes)


@given(st.lists(st.floats(0.01, 100.0), min_size=1, max_size=3), st.sampled_from(["max", "min"]))
def test_no_step_means_no_change(sizes, rule):
    weight = shards(*sizes, spec=replace(NVFP4, fold=rule))
    folded = fold_second_scales(weight)
    assert len({float(s.second_scale) for s in folded.segments}) == 1
    same = torch.equal(folded.dequantize(), weight.dequantize())
    assert same or len(folded.value_steps) == 1
    again = fold_second_scales(folded)
    assert again is folded


def test_scales_of_zero_stay_zero():
    weight = shards(1.0, 3.0)
    first, second = weight.segments
    scale = first.scale.clone()
    scale[0] = 0
    weight = replace(weight, segments=(replace(first, scale=scale), second))
    folded = fold_second_scales(weight)
    assert (folded.segments[0].scale[0] == 0).all()
    assert (folded.dequantize()[0] == 0).all()


def test_a_rule_that_forbids_rounding_is_kept():
    same = replace(NVFP4, fold="same")
    assert fold_second_scales(shards(1.0, 2.0, spec=same)).value_steps == ()
    with pytest.raises(FormatError, match="no one of them serves all shards exactly"):
        fold_second_scales(shards(1.0, 3.0, spec=same))


@pytest.mark.parametrize("text", ["fp4_e2m1[1x16]:e4m3", "fp4_e2m1[1x16]:e4m3:second[1x*]"])
def test_only_one_second_scale_a_shard_can_be_folded(text):
    weight = quantize_weight(torch.randn(4, 32), parse_spec(text))
    with pytest.raises(FormatError, match=r"segment 0 is fp4_e2m1\[1x16\]:e4m3"):
        fold_second_scales(weight)
