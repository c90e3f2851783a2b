from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from quantdock.errors import FormatError
from quantdock.formats import parse_spec
from quantdock.numerics import (
    SMALLEST_SCALE,
    choose_scale,
    choose_scale_and_zero,
    decode_scale,
    encode_scale,
    round_scale,
)

BYTES = torch.arange(256, dtype=torch.uint8)
POWERS = [2.0**e for e in range(-127, 128)]
BYTE_STORAGES = ["uint8", "float8_e8m0fnu"]


@pytest.mark.parametrize("storage", BYTE_STORAGES)
def test_exponent_bytes_decode_by_their_bits(vector, storage):
    v = vector("cast-decode/e8m0fnu")
    stored = v["codes"].view(getattr(torch, storage))
    scale = decode_scale(stored)
    assert scale[:255].tolist() == POWERS == v["f32"][:255].tolist()
    assert scale[255].isnan()


def test_torch_agrees_on_exponent_bytes(vector):
    v = vector("cast-torch/e8m0fnu")
    assert torch.equal(decode_scale(v["all_codes"])[:255], v["decoded"][:255])


@pytest.mark.parametrize("storage", BYTE_STORAGES)
def test_powers_of_two_are_stored_exactly(storage):
    scale = torch.tensor([*POWERS, torch.nan])
    stored = encode_scale(scale, storage)
    assert str(stored.dtype) == f"torch.{storage}"
    assert torch.equal(stored.view(torch.uint8), BYTES)


@pytest.mark.parametrize("bad", [3.0, 0.0, torch.inf, 2.0**-128, -2.0])
def test_another_scale_is_no_exponent_byte(bad):
    scale = torch.tensor([1.0, bad])
    with pytest.raises(
        FormatError, match=r"1 of 2 scales cannot be stored as uint8[\s\S]*" f"{bad}"
    ):
        encode_scale(scale, "uint8")


@pytest.mark.parametrize("storage", ["float32", "bfloat16", "float16"])
def test_floats_are_stored_and_read_by_value(storage):
    scale = torch.tensor([0.5, 1.0, 3.0])
    stored = encode_scale(scale, storage)
    assert str(stored.dtype) == f"torch.{storage}"
    assert torch.equal(decode_scale(stored), scale)


def test_integers_are_no_scales():
    with pytest.raises(FormatError, match=r"A scale cannot be torch\.int32"):
        decode_scale(torch.ones(2, dtype=torch.int32))


def test_ceil_equals_deepgemm(vector):
    v = vector("ue8m0-round/deepgemm_ceil")
    rounded = round_scale(v["scale"], "ceil", "fp8_e4m3")
    assert torch.equal(rounded, v["rounded"])
    assert torch.equal(encode_scale(rounded, "uint8"), v["code"])


def test_casting_to_e8m0_is_another_rule(vector):
    """torch rounds to the nearer power of two, so that tiles may saturate."""
    v = vector("ue8m0-round/torch_cast")
    cast = v["scale"].to(torch.float8_e8m0fnu).view(torch.uint8)
    assert torch.equal(cast, v["code"])
    ours = encode_scale(round_scale(v["scale"], "ceil", "fp8_e4m3"), "uint8")
    assert (ours != v["code"]).sum() == 163
    assert torch.tensor(2.5).to(torch.float8_e8m0fnu).to(torch.float32) == 2
    assert round_scale(torch.tensor(2.5), "ceil", "fp8_e4m3") == 4


@given(st.floats(min_value=2.0**-126, max_value=2.0**127, width=32))
def test_rounding_brackets_the_scale(value):
    scale = torch.tensor(value)
    up, down = (round_scale(scale, rule, "fp8_e4m3") for rule in ("ceil", "floor"))
    assert down <= scale <= up
    assert up == down if torch.frexp(scale).mantissa == 0.5 else up == 2 * down
    assert round_scale(scale, "even", "fp8_e4m3") in (down, up)
    assert round_scale(scale, "exact", "fp8_e4m3") == scale


@pytest.mark.parametrize(
    ("element", "last_down"),
    [
        ("fp8_e4m3", 1.875),
        ("fp8_e5m2", 1.75),
        ("fp8_e4m3fnuz", 1.875),
        ("fp8_e5m2fnuz", 1.75),
        ("int8", 1.984375),
        ("int4", 1.75),
    ],
)
def test_even_rounds_to_the_mantissa_of_the_element(element, last_down):
    """The tie above the last value of a binade goes up, all below it down."""
    tie = torch.tensor(last_down + (2 - last_down) / 2)
    below = torch.nextafter(tie, torch.tensor(0.0))
    assert round_scale(tie, "even", element) == 2
    assert round_scale(below, "even", element) == 1


@pytest.mark.parametrize("rounding", ["ceil", "floor", "even"])
def test_rounding_stays_in_the_range_of_every_storage(rounding):
    scale = torch.tensor([0.0, 1e-45, 2.0**-127, 3e38, torch.inf, torch.nan])
    rounded = round_scale(scale, rounding, "fp8_e4m3")
    assert rounded[:3].tolist() == [SMALLEST_SCALE] * 3
    assert rounded[3:5].tolist() == [2.0**127] * 2
    assert rounded[5].isnan()
    encode_scale(rounded, "float8_e8m0fnu")


@pytest.mark.parametrize(
    ("text", "amax", "scale"),
    [
        ("fp8_e4m3[*x*]", 448.0, 1.0),
        ("fp8_e4m3[*x*]", 1.0, 1 / 448),
        ("fp8_e4m3fnuz[*x*]", 240.0, 1.0),
        ("fp8_e5m2[*x*]", 57344.0, 1.0),
        ("int8[*x*]", 127.0, 1.0),
        ("int4[*x*]", 7.0, 1.0),
        ("fp8_e4m3[*x*]:bf16", 449.0, 1.0),
        ("fp8_e4m3[1x32]:e8m0:ceil", 448.0, 1.0),
        ("fp8_e4m3[1x32]:e8m0:ceil", 449.0, 2.0),
        ("fp8_e4m3[1x32]:e8m0:floor", 511.0, 1.0),
        ("fp8_e4m3[1x32]:e8m0:floor", 512.0, 2.0),
        ("fp8_e4m3[1x32]:e8m0:even", 495.0, 1.0),
        ("fp8_e4m3[1x32]:e8m0:even", 496.0, 2.0),
        ("fp8_e4m3[1x32]:ceil", 449.0, 2.0),
    ],
)
def test_the_scale_of_a_maximum(text, amax, scale):
    chosen = choose_scale(torch.tensor([[amax]]), parse_spec(text))
    assert torch.equal(chosen, torch.tensor([[scale]]))


@pytest.mark.parametrize(
    "text", ["fp8_e4m3[*x*]", "int8[*x*]", "fp8_e5m2[*x*]:bf16", "fp8_e4m3[1x32]:e8m0:even"]
)
def test_extreme_maxima_have_finite_scales(text):
    amax = torch.tensor([0.0, 1e-45, torch.inf, 3.4e38, torch.nan])
    scale = choose_scale(amax, parse_spec(text))
    assert scale[:2].tolist() == [SMALLEST_SCALE] * 2
    assert scale[2:4].isfinite().all()
    assert scale[4].isnan()


def test_bf16_scales_are_rounded_to_nearest_even():
    amax = torch.cat(
        [torch.rand(1000) * 10, torch.tensor([448 * (1 + 2**-8), 448 * (1 + 3 * 2**-8)])]
    )
    scale = choose_scale(amax, parse_spec("fp8_e4m3[*x*]:bf16"))
    assert torch.equal(scale, (amax / 448).to(torch.bfloat16).to(torch.float32))
    assert scale[-2:].tolist() == [1.0, 1 + 2**-6]


def test_zero_points_are_the_codes_of_zero():
    low, high = torch.tensor([0.0, -10.0, -1.0, 0.0]), torch.tensor([10.0, 0.0, 3.0, 0.0])
    scale, zero = choose_scale_and_zero(low, high, parse_spec("int8[1x*]:zero"))
    assert zero.tolist() == [-128, 127, -64, -128]
    assert zero.dtype == torch.int32
    assert scale.tolist()[:2] == [torch.tensor(10.0).div(255).item()] * 2
    assert scale[3] == SMALLEST_SCALE
    _, unsigned = choose_scale_and_zero(low, high, parse_spec("uint8[1x*]:zero"))
    assert unsigned.tolist() == [0, 255, 64, 0]


def test_extreme_ranges_have_finite_scales():
    low = torch.tensor([-torch.inf, 0.0, -3e38, torch.nan])
    high = torch.tensor([torch.inf, 1e-45, 3e38, 1.0])
    scale, zero = choose_scale_and_zero(low, high, parse_spec("int8[1x*]:zero"))
    assert scale[:3].isfinite().all()
    assert scale[3].isnan()
    assert ((zero >= -128) & (zero <= 127)).all()


@pytest.mark.parametrize("text", ["fp8_e4m3[1x*]:zero", "int8[1x*]:e8m0:floor:zero"])
def test_zero_points_belong_to_integers(text):
    one = torch.ones(1, 1)
    with pytest.raises(FormatError, match=r"cannot have a zero point"):
        choose_scale_and_zero(-one, one, parse_spec(text))
