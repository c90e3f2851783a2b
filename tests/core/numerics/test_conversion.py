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
    Segment,
    decode,
    decode_scale,
    encode,
    quantize_weight,
    recode,
    requantize,
    unpack_expert_blocks,
)

MXFP8 = parse_spec("fp8_e4m3[1x32]:e8m0:ceil")
MXFP4 = parse_spec("fp4_e2m1[1x32]:e8m0:even")
BLOCK = parse_spec("fp8_e4m3[128x128]")


def one(spec, codes, scale):
    return CanonicalWeight(segments=(Segment(spec=spec, codes=codes, scale=scale),))


def fp8(*values):
    return encode(torch.tensor([values]), "fp8_e4m3")


def test_mxfp8_whose_groups_are_alike_becomes_block_fp8_exactly():
    x = torch.randn(200, 256).clamp(-3, 3)
    x[:, ::32] = 3.0  # every group has one exponent
    weight = quantize_weight(x, MXFP8)
    assert weight.segments[0].scale.unique().numel() == 1
    block = requantize(weight, BLOCK)
    assert block.segments[0].spec == BLOCK and block.segments[0].scale.shape == (2, 2)
    assert block.value_steps == ()
    assert torch.equal(block.dequantize(), weight.dequantize())


def test_values_too_small_for_their_block_are_counted():
    """Beside 448 in one block, 2^-9 is the smallest number, and half of it is lost."""
    codes = torch.cat([fp8(448.0, 2.0**-9).repeat(1, 16), fp8(1.0, -1.5).repeat(1, 16)], 1)
    scale = torch.tensor([[1.0, 2.0**-9]])
    kept = requantize(one(MXFP8, codes, scale), BLOCK)
    values = kept.dequantize()
    assert values[0, [0, 1, 32, 33]].tolist() == [448.0, 2.0**-9, 2.0**-9, -(2.0**-8)]
    assert kept.value_steps == (
        "requantized to fp8_e4m3[128x128]: 16 of 64 values changed, by 0.00098 at most",
    )
    small = requantize(one(MXFP8, codes, scale * torch.tensor([[1.0, 2.0]])), BLOCK)
    assert small.value_steps == ()


@given(st.integers(0, 2**31), st.sampled_from(["fp8_e4m3[128x128]", "fp8_e4m3[1x*]", str(MXFP8)]))
def test_steps_count_the_values_that_changed(seed, text):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(40, 96, generator=generator) * 8.0 ** torch.randn(
        40, 3, generator=generator
    ).repeat_interleave(32, 1)
    for spec in (MXFP8, MXFP4, parse_spec("fp4_e2m1[1x16]:e4m3:second[*x*]")):
        weight = quantize_weight(x, spec)
        made = requantize(weight, parse_spec(text))
        changed = int((made.dequantize() != weight.dequantize()).sum())
        assert len(made.value_steps) == (changed > 0)
        assert changed == 0 or f": {changed:,} of 3,840 values" in made.value_steps[0]


def test_block_fp8_with_powers_of_two_becomes_mxfp8_exactly():
    weight = quantize_weight(torch.randn(150, 200), replace(BLOCK, rounding="ceil"))
    made = requantize(weight, MXFP8)
    assert made.value_steps == () and made.segments[0].scale.shape == (150, 7)
    assert torch.equal(made.dequantize(), weight.dequantize())
    back = requantize(made, BLOCK)
    assert back.value_steps == ()
    assert torch.equal(back.dequantize(), weight.dequantize())


def test_block_fp8_with_other_scales_is_rounded_to_mxfp8():
    weight = quantize_weight(torch.randn(128, 128), BLOCK)
    made = requantize(weight, MXFP8)
    assert len(made.value_steps) == 1 and "of 16,384 values changed" in made.value_steps[0]
    change = (made.dequantize() - weight.dequantize()).abs()
    assert (change <= weight.dequantize().abs() * 2.0**-4 + 2.0**-16).all()


@pytest.mark.parametrize(("span", "exact"), [(14, True), (15, False)])
def test_fp4_becomes_fp8_exactly_over_fourteen_powers_of_two(span, exact):
    """6 * 2^6 is below 448, and 0.5 * 2^6 / 2^14 is e4m3's smallest number."""
    every = torch.arange(16, dtype=torch.uint8).repeat(1, 4)
    weight = one(MXFP4, every, torch.tensor([[1.0, 2.0**-span]]))
    made = requantize(weight, BLOCK)
    assert (made.value_steps == ()) is exact
    assert torch.equal(made.dequantize(), weight.dequantize()) is exact
    assert made.segments[0].scale.tolist() == [[2.0**-6]]


def test_experts_of_a_file_become_fp8(vector):
    v = vector("mxfp4-gptoss/transformers_E1_R32_G8_f32")
    codes, scale = unpack_expert_blocks(v["blocks"][0], v["scales"][0])
    weight = one(MXFP4, codes, scale)
    as_mx = recode(weight, "fp8_e4m3")
    assert torch.equal(as_mx.dequantize(), v["out"][0].T)
    assert torch.equal(as_mx.segments[0].scale, decode_scale(v["scales"][0]))
    block = requantize(weight, BLOCK)  # its scales span 49 powers of two
    lost = int((block.dequantize() != v["out"][0].T).sum())
    assert f": {lost:,} of 8,192 values changed" in block.value_steps[0]


@pytest.mark.parametrize(
    ("text", "element"),
    [
        ("int4[1x128]", "fp8_e4m3"),
        ("int4[1x*]:second[*x*]", "fp8_e4m3"),
        ("int4[1x32]", "int8"),
        ("uint4[1x32]:zero", "fp8_e4m3"),
        ("uint4[1x32]:zero", "int8"),
        ("fp4_e2m1[1x32]:e8m0:even", "fp8_e4m3"),
        ("fp4_e2m1[1x16]:e4m3:second[*x*]", "fp8_e5m2"),
        ("fp6_e2m3[1x32]:e8m0:even", "fp8_e4m3"),
        ("fp6_e3m2[1x32]:e8m0:even", "fp8_e5m2"),
    ],
)
def test_codes_become_the_same_numbers_of_a_larger_element(text, element):
    weight = quantize_weight(torch.randn(8, 128), parse_spec(text))
    made = recode(weight, element)
    (segment,) = made.segments
    assert segment.spec.element == element and segment.zero is None
    assert torch.equal(segment.scale, weight.segments[0].scale)
    assert torch.equal(made.dequantize(), weight.dequantize())


def test_act_order_keeps_its_groups():
    segment = Segment(
        spec=parse_spec("uint4[1x2]:zero:act-order"),
        codes=torch.arange(4, dtype=torch.uint8).repeat(2, 1),
        scale=torch.tensor([[1.0, 10.0]]).repeat(2, 1),
        zero=torch.tensor([[1, 2]], dtype=torch.int32).repeat(2, 1),
        group_index=torch.tensor([1, 0, 1, 0], dtype=torch.int32),
    )
    made = recode(CanonicalWeight(segments=(segment,)), "fp8_e4m3")
    assert decode(made.segments[0].codes, "fp8_e4m3")[0].tolist() == [-2.0, 0.0, 0.0, 2.0]
    assert made.dequantize()[0].tolist() == [-20.0, 0.0, 0.0, 2.0]


def test_numbers_that_an_element_lacks_are_refused():
    weight = one(
        parse_spec("int8[1x*]"), torch.tensor([[1, 17, 16]], dtype=torch.int8), torch.ones(1, 1)
    )
    with pytest.raises(FormatError, match=r"1 of 3 codes of int8[\s\S]*the first is 17\.0"):
        recode(weight, "fp8_e4m3")
