"""quantize and dequantize with first and second scales; test_golden_nvfp4 has other libraries'."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from quantdock.errors import FormatError
from quantdock.formats import ELEMENTS, QuantSpec, SecondScale, parse_spec
from quantdock.numerics import decode, dequantize, encode, encode_scale, quantize
from quantdock.numerics.tiles import tile_amax

NVFP4 = parse_spec("fp4_e2m1[1x16]:e4m3:second[*x*]")
SPECS = [
    "fp4_e2m1[1x16]:e4m3:second[*x*]",
    "fp4_e2m1[1x16]:e4m3:dynamic:second[1x*]-dynamic",
    "fp6_e2m3[2x4]:e4m3:second[6x8]",
    "int4[1x16]:e4m3:second[1x*]",
    "int4[1x*]:second[*x*]",
]


def spread(values, rows, cols, shape):
    """Return tile values for each element of a tensor."""
    values = values.repeat_interleave(rows or shape[0], 0).repeat_interleave(cols or shape[1], 1)
    return values[: shape[0], : shape[1]]


def round_trip(x, spec):
    q = quantize(x, spec)
    return q, dequantize(q.codes, q.scale, spec, second_scale=q.second_scale)


@given(
    n=st.integers(1, 15),
    k=st.integers(1, 40),
    tile=st.tuples(st.sampled_from([1, 2, None]), st.sampled_from([4, 16, None])),
    times=st.tuples(st.sampled_from([1, 3, None]), st.sampled_from([1, 2, None])),
    size=st.sampled_from([1e-20, 1.0, 1e20]),
)
def test_any_tiles_follow_the_rule(n, k, tile, times, size):
    """second = amax / (448 * 6); scale = amax / (6 * second) in e4m3; x / (scale * second)."""
    (rows, cols), (tall, wide) = tile, times
    second = SecondScale(rows=rows and tall and rows * tall, cols=cols and wide and cols * wide)
    spec = QuantSpec(element="fp4_e2m1", rows=rows, cols=cols, scale="e4m3", second=second)
    x = torch.randn(n, k) * size
    q, real = round_trip(x, spec)
    one = QuantSpec(element="fp4_e2m1", rows=second.rows, cols=second.cols)
    assert torch.equal(q.second_scale, tile_amax(x, one) / torch.tensor(2688.0))
    seconds = spread(q.second_scale, second.rows, second.cols, x.shape)
    first = spread(q.scale, rows, cols, x.shape)
    amax = spread(tile_amax(x, spec), rows, cols, x.shape)
    wanted = (amax / (seconds * 6)).clamp(2.0**-9, 448).to(torch.float8_e4m3fn).float()
    assert torch.equal(first, wanted)
    assert torch.equal(q.codes, encode(x / (first * seconds), "fp4_e2m1"))
    assert torch.equal(real, decode(q.codes, "fp4_e2m1") * (first * seconds))


@pytest.mark.parametrize("text", SPECS)
def test_the_error_is_small_and_nothing_saturates_far(text):
    spec = parse_spec(text)
    x = torch.randn(13, 64)
    _, real = round_trip(x, spec)
    step = 2.0 ** -(ELEMENTS[spec.element].fraction_bits + 1)
    assert ((real - x).abs() <= tile_amax(x, QuantSpec(element="int8")) * (step / 2 + 1 / 16)).all()


@pytest.mark.parametrize("text", SPECS)
def test_values_that_have_codes_stay_as_they_are(text):
    """Quantizing what was dequantized, with the scales it had, changes nothing."""
    spec = parse_spec(text)
    q, real = round_trip(torch.randn(13, 64), spec)
    again = quantize(real, spec, q.scale, second_scale=q.second_scale)
    assert torch.equal(
        dequantize(again.codes, again.scale, spec, second_scale=again.second_scale), real
    )


@pytest.mark.parametrize("text", SPECS)
def test_zeros_stay_zeros_and_nothing_stays_nothing(text):
    spec = parse_spec(text)
    for shape in ((4, 32), (0, 32), (4, 0)):
        q, real = round_trip(torch.zeros(shape), spec)
        assert torch.equal(real, torch.zeros(shape))
        assert q.scale.isfinite().all() and q.second_scale.isfinite().all()
        assert q.second_scale.shape == spec.second.grid(*shape)


def test_extreme_values_stay_finite_and_nan_stays_in_its_own_tile():
    x = torch.ones(2, 32)
    x[0, 0], x[0, 1] = torch.inf, -torch.inf
    q, real = round_trip(x, NVFP4)
    assert q.second_scale.isfinite().all() and real.isfinite().all()
    assert real[0, 0] == -real[0, 1] == real.max()
    given_second = torch.tensor(2.0)
    x[0, 0] = torch.nan
    q = quantize(x, NVFP4, second_scale=given_second)
    real = dequantize(q.codes, q.scale, NVFP4, second_scale=given_second)
    assert real[0, :16].isnan().all() and real[0, 16:].isfinite().all() and real[1].isfinite().all()


def test_leading_dimensions_are_rows():
    x = torch.randn(2, 3, 32)
    for text in SPECS[:2]:
        spec = parse_spec(text)
        q, real = round_trip(x, spec)
        flat, whole = round_trip(x.view(6, 32), spec)
        assert q.scale.shape == (2, 3, 2) and torch.equal(real.view(6, 32), whole)
        assert torch.equal(q.second_scale.reshape(-1, 1), flat.second_scale)
    assert q.second_scale.shape == (2, 3, 1)


def test_scales_are_taken_as_they_are_stored():
    x = torch.randn(4, 32)
    q, real = round_trip(x, NVFP4)
    stored = encode_scale(q.scale, "float8_e4m3fn")
    second = q.second_scale.reshape(())
    assert torch.equal(dequantize(q.codes, stored, NVFP4, second_scale=second), real)
    assert torch.equal(quantize(x, NVFP4, stored, second_scale=second).codes, q.codes)


def test_a_scale_that_e4m3_does_not_hold_is_not_stored_as_one():
    with pytest.raises(
        FormatError, match=r"1 of 2 scales cannot be stored as float8_e4m3fn[\s\S]*3"
    ):
        encode_scale(torch.tensor([1.5, 1.53]), "float8_e4m3fn")


def test_int4_under_an_fp8_scale():
    """Codes times the first scale fit into fp8: the second is that of the values in fp8."""
    spec = parse_spec("int4[1x*]:second[*x*]")
    x = torch.randn(6, 32)
    q, real = round_trip(x, spec)
    assert q.second_scale.item() == (x.abs().max() / 448).item()
    intermediate = q.codes.float() * q.scale
    assert intermediate.abs().max() <= 448 * (1 + 2.0**-20)
    assert torch.equal(real, q.codes.float() * (q.scale * q.second_scale))
    assert ((real - x).abs() <= x.abs().amax(1, keepdim=True) / 14 * 1.0001).all()


def test_both_levels_are_given_or_none():
    x, one = torch.ones(1, 16), torch.ones(1, 1)
    with pytest.raises(FormatError, match="was given no second scale"):
        quantize(x, NVFP4, one)
    with pytest.raises(FormatError, match="was given a second scale"):
        quantize(x, parse_spec("fp4_e2m1[1x16]:e4m3"), second_scale=one)
    with pytest.raises(FormatError, match="was given no second scale"):
        dequantize(torch.zeros(1, 16, dtype=torch.uint8), one, NVFP4)
    with pytest.raises(FormatError, match=r"has a scale of shape \(2, 1\)[\s\S]*\(1, 1\)"):
        quantize(x, NVFP4, one, second_scale=torch.ones(2, 1))
