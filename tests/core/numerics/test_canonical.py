from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from quantdock.errors import FormatError
from quantdock.formats import parse_spec
from quantdock.numerics import (
    CanonicalWeight,
    Segment,
    decode,
    join,
    quantize,
    quantize_weight,
)

SPEC = parse_spec("fp8_e4m3[4x4]")


def segment(n: int) -> Segment:
    q = quantize(torch.randn(n, 10), SPEC)
    return Segment(spec=SPEC, codes=q.codes, scale=q.scale)


def test_a_segment_dequantizes_by_its_spec():
    x = torch.randn(6, 10)
    q = quantize(x, parse_spec("uint8[1x*]:zero"))
    part = Segment(spec=parse_spec("uint8[1x*]:zero"), codes=q.codes, scale=q.scale, zero=q.zero)
    assert (part.dequantize() - x).abs().max() < 0.03
    assert part.dequantize(torch.bfloat16).dtype == torch.bfloat16


def test_a_scale_of_another_shape_is_refused():
    good = segment(6)
    with pytest.raises(
        FormatError,
        match=r"\[6, 10\] does not fit[\s\S]*scale has shape \(1, 3\), its grid is \(2, 3\)",
    ):
        Segment(spec=SPEC, codes=good.codes, scale=good.scale[:1])


def test_fused_layers_keep_their_segments_in_order():
    parts = [
        CanonicalWeight(segments=(segment(n),), input_scale=torch.tensor(s), value_steps=steps)
        for n, s, steps in [(3, 1.0, ()), (5, 2.0, ("requantized",))]
    ]
    whole = join(parts)
    assert whole.shape == (8, 10)
    assert whole.input_scale is not None
    assert whole.input_scale.tolist() == [1.0, 2.0]
    assert whole.value_steps == ("requantized",)
    expected = torch.cat([part.dequantize() for part in parts])
    assert torch.equal(whole.dequantize(), expected)
    assert join([CanonicalWeight(segments=(segment(3),))]).input_scale is None


NVFP4 = parse_spec("fp4_e2m1[1x16]:e4m3:second[*x*]")


def test_a_second_scale_multiplies_the_first_in_f32():
    weight = quantize_weight(torch.randn(6, 40), NVFP4)
    (part,) = weight.segments
    assert part.scale.shape == (6, 3) and part.second_scale.shape == (1, 1)
    whole = (part.scale * part.second_scale).repeat_interleave(16, 1)[:, :40]
    assert torch.equal(weight.dequantize(), decode(part.codes, "fp4_e2m1") * whole)


def test_a_second_scale_that_does_not_fit_is_refused():
    (part,) = quantize_weight(torch.randn(6, 40), NVFP4).segments
    with pytest.raises(FormatError, match=r"second scale has shape None, its grid is \(1, 1\)"):
        replace(part, second_scale=None)
    with pytest.raises(FormatError, match=r"second scale has shape \(6, 1\), its grid is \(1, 1"):
        replace(part, second_scale=torch.ones(6, 1))
    with pytest.raises(FormatError, match=r"second scale has shape \(1, 1\), its grid is None"):
        replace(part, spec=replace(NVFP4, second=None))


def test_shards_keep_their_own_second_scales():
    parts = [quantize_weight(torch.randn(4, 32) * size, NVFP4) for size in (1.0, 3.0)]
    whole = join(parts)
    seconds = [float(s.second_scale) for s in whole.segments]
    assert seconds == [float(p.segments[0].second_scale) for p in parts]
    assert seconds[0] != seconds[1]
    assert torch.equal(whole.dequantize(), torch.cat([p.dequantize() for p in parts]))


def in_act_order(index: list[int]) -> Segment:
    """Return 2 x 6 codes 0..5 whose columns are in groups 1.0, 10.0 or 100.0 with zero 1."""
    spec = parse_spec("uint4[1x2]:zero:act-order")
    return Segment(
        spec=spec,
        codes=torch.arange(6, dtype=torch.uint8).repeat(2, 1),
        scale=torch.tensor([[1.0, 10.0, 100.0]]).repeat(2, 1),
        zero=torch.ones(2, 3, dtype=torch.int32),
        group_index=torch.tensor(index, dtype=torch.int32),
    )


def test_act_order_gives_each_column_the_scale_of_its_group():
    part = in_act_order([2, 0, 0, 1, 2, 2])
    assert part.dequantize()[1].tolist() == [-100.0, 0.0, 1.0, 20.0, 300.0, 400.0]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"group_index": None}, "has no group index"),
        ({"group_index": torch.zeros(5, dtype=torch.int32)}, r"shape \(5,\), not \(6,\)"),
        ({"zero": None}, "has no zero point"),
        ({"zero": torch.ones(2, 2, dtype=torch.int32)}, r"zero points have shape \(2, 2\)"),
    ],
)
def test_parts_of_a_segment_that_do_not_fit_are_refused(change, message):
    with pytest.raises(FormatError, match=message):
        replace(in_act_order([0, 0, 1, 1, 2, 2]), **change)


def test_shards_of_a_fused_layer_agree_on_what_they_have():
    plain = CanonicalWeight(segments=(segment(3),))
    with pytest.raises(FormatError, match=r"1 of 2 shards[\s\S]*missing: shard 1"):
        join([replace(plain, input_scale=torch.tensor(1.0)), plain])
    ones = replace(plain, input_multiplier=torch.ones(10))
    assert join([ones, ones]).input_multiplier is not None
    with pytest.raises(FormatError, match="multiply their input differently"):
        join([ones, replace(plain, input_multiplier=torch.full((10,), 2.0))])
