from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from quantdock.errors import FormatError
from quantdock.formats import ELEMENTS, QuantSpec, parse_spec
from quantdock.numerics import (
    SMALLEST_SCALE,
    decode,
    dequantize,
    encode,
    encode_scale,
    expand_scale,
    quantize,
    tiles,
)

tile_sizes = st.one_of(st.none(), st.integers(1, 25))
SPECS = [
    "fp8_e4m3[*x*]",
    "fp8_e5m2[1x*]",
    "fp8_e4m3fnuz[1x8]",
    "fp8_e5m2fnuz[4x4]",
    "fp8_e4m3[16x1]",
    "fp8_e4m3[3x5]:bf16",
    "fp8_e4m3[1x8]:e8m0:ceil",
    "fp8_e4m3[1x8]:e8m0:floor",
    "fp8_e5m2[1x8]:e8m0:even",
    "int8[1x*]",
    "int8[*x*]:zero",
    "uint8[1x8]:zero",
    "int4[1x8]",
    "uint4[1x8]:zero",
    "fp6_e2m3[1x8]:e8m0:even",
    "fp6_e3m2[1x8]:e8m0:ceil",
    "fp4_e2m1[1x8]:e8m0:even",
    "fp4_e2m1[1x8]:e8m0:floor",
    "int8[1x8]:e8m0:floor",
]


def bytes_of(codes: torch.Tensor) -> torch.Tensor:
    return codes.view(torch.uint8)


@given(
    n=st.integers(1, 20),
    k=st.integers(1, 20),
    rows=tile_sizes,
    cols=tile_sizes,
    limit=st.sampled_from([1, 40, 1 << 18]),
    element=st.sampled_from(["fp8_e4m3", "fp8_e5m2fnuz", "int8"]),
)
def test_any_tile_follows_the_rule(n, k, rows, cols, limit, element):
    """amax / largest, x / scale, nearest code: written out for whole tensors."""
    spec = QuantSpec(element=element, rows=rows, cols=cols)
    x = torch.randn(n, k)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tiles, "_CHUNK", limit)
        q = quantize(x, spec)
        real = dequantize(q.codes, q.scale, spec)
    scale = expand_scale(q.scale, spec, n, k)
    assert torch.equal(bytes_of(q.codes), bytes_of(encode(x / scale, element)))
    assert torch.equal(real, decode(q.codes, element) * scale)
    assert q.codes.is_contiguous()


@pytest.mark.parametrize("text", SPECS)
def test_the_error_is_half_a_step_at_most(text):
    spec = parse_spec(text)
    x = torch.randn(19, 23)
    q = quantize(x, spec)
    error = (dequantize(q.codes, q.scale, spec, zero=q.zero) - x).abs()
    scale = expand_scale(q.scale, spec, *x.shape)
    element = ELEMENTS[spec.element]
    relative = 2.0 ** -(element.fraction_bits + 1) if element.is_float else 0.0
    steps = element.fraction_bits if element.is_float else 0
    absolute = 2.0 ** (element.lowest_exponent - steps - 1)
    bound = (x.abs() * relative).maximum(scale * absolute) * (1 + 1e-6)
    if spec.rounding in ("floor", "even") or spec.scale == "bf16":  # these may saturate
        top = element.largest * scale
        bound = bound.maximum((x.abs() - top).clamp(min=0))
    if spec.zero:  # the zero point is rounded too
        bound = bound + scale * 0.5
    assert (error <= bound).all()


@pytest.mark.parametrize("text", SPECS)
def test_tiles_of_zeros_are_zeros_with_the_smallest_scale(text):
    spec = parse_spec(text)
    x = torch.zeros(8, 16)
    q = quantize(x, spec)
    assert (q.scale == SMALLEST_SCALE).all()
    assert torch.equal(dequantize(q.codes, q.scale, spec, zero=q.zero), x)
    encode_scale(q.scale, "float8_e8m0fnu")


def test_one_row_of_zeros_leaves_the_others_alone():
    spec = parse_spec("fp8_e4m3[1x*]")
    x = torch.randn(4, 32)
    x[2] = 0
    q, others = quantize(x, spec), quantize(x[[0, 1, 3]], spec)
    assert q.scale[2] == SMALLEST_SCALE
    assert torch.equal(bytes_of(q.codes[[0, 1, 3]]), bytes_of(others.codes))


@pytest.mark.parametrize("text", ["fp8_e4m3[1x*]", "fp8_e4m3[1x8]", "int8[1x*]", "int8[1x*]:zero"])
def test_nan_makes_its_own_row_nan_only(text):
    spec = parse_spec(text)
    x = torch.randn(3, 16)
    x[1, 5] = torch.nan
    q = quantize(x, spec)
    real = dequantize(q.codes, q.scale, spec, zero=q.zero)
    assert real[1, 5].isnan()
    assert real[[0, 2]].isfinite().all()


@pytest.mark.parametrize("text", ["fp8_e4m3[1x*]", "int8[1x*]", "fp8_e5m2[1x8]:e8m0:ceil"])
def test_infinity_takes_the_largest_code(text):
    spec = parse_spec(text)
    x = torch.ones(2, 8)
    x[1, 0], x[1, 1] = torch.inf, -torch.inf
    q = quantize(x, spec)
    real = dequantize(q.codes, q.scale, spec)
    assert q.scale.isfinite().all()
    assert torch.equal(real[0], dequantize(q.codes[:1], q.scale[:1], spec)[0])
    assert (real[0] - 1).abs().max() < 0.01
    top = 127 if spec.element == "int8" else ELEMENTS[spec.element].largest
    assert decode(q.codes, spec.element)[1, 0] == top
    assert decode(q.codes, spec.element)[1, 1] in (-top, -128)


def test_static_scales_saturate_and_keep_nan():
    spec = parse_spec("fp8_e4m3[*x*]")
    x = torch.tensor([[1.0, 1e6, -torch.inf, torch.nan]])
    q = quantize(x, spec, torch.tensor(2.0))
    assert q.scale.tolist() == [[2.0]]
    assert dequantize(q.codes, q.scale, spec)[0, :3].tolist() == [1.0, 896.0, -896.0]
    assert decode(q.codes, spec.element)[0, 3].isnan()


def test_a_static_scale_of_zero_marks_zeros():
    spec = parse_spec("fp8_e4m3[1x*]")
    x = torch.tensor([[0.0, -0.0], [1.0, 2.0]])
    q = quantize(x, spec, torch.tensor([0.0, 1.0]))
    assert q.scale.tolist() == [[0.0], [1.0]]
    assert torch.equal(dequantize(q.codes, q.scale, spec), x)


@pytest.mark.parametrize("storage", ["uint8", "float8_e8m0fnu", "bfloat16", "float32"])
def test_scales_are_taken_in_every_storage(storage):
    spec = parse_spec("fp8_e4m3[1x4]:e8m0:ceil")
    x = torch.randn(3, 8)
    q = quantize(x, spec)
    stored = encode_scale(q.scale, storage)
    again = quantize(x, spec, stored)
    assert torch.equal(again.scale, q.scale)
    assert torch.equal(bytes_of(again.codes), bytes_of(q.codes))
    real = dequantize(q.codes, q.scale, spec)
    assert torch.equal(dequantize(q.codes, stored, spec), real)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_values_are_computed_in_f32(dtype):
    spec = parse_spec("fp8_e4m3[1x*]")
    x = torch.randn(5, 64).to(dtype)
    ours, exact = quantize(x, spec), quantize(x.to(torch.float32), spec)
    assert torch.equal(ours.scale, exact.scale)
    assert torch.equal(bytes_of(ours.codes), bytes_of(exact.codes))
    real = dequantize(ours.codes, ours.scale, spec, dtype=dtype)
    assert torch.equal(real, dequantize(ours.codes, ours.scale, spec).to(dtype))


@pytest.mark.parametrize("text", ["fp8_e4m3[1x*]", "int8[1x8]", "int8[1x*]:zero"])
@pytest.mark.parametrize("shape", [(16,), (2, 3, 16), (2, 0, 16), (2, 1, 3, 16)])
def test_leading_dimensions_are_rows(text, shape):
    spec = parse_spec(text)
    x = torch.randn(shape)
    q = quantize(x, spec)
    flat = quantize(x.reshape(-1, 16), spec)
    groups = spec.grid(1, 16)[1]
    assert q.codes.shape == shape
    assert q.scale.shape == (*shape[:-1], groups)
    assert torch.equal(q.scale.reshape(-1, groups), flat.scale)
    real = dequantize(q.codes, q.scale, spec, zero=q.zero)
    assert torch.equal(real.view(-1, 16), dequantize(flat.codes, flat.scale, spec, zero=flat.zero))


def test_leading_dimensions_share_the_scale_of_a_tensor():
    spec = parse_spec("fp8_e4m3[*x*]")
    x = torch.randn(2, 3, 16)
    q = quantize(x, spec)
    assert q.scale.tolist() == [[(x.abs().max() / 448).item()]]
    assert dequantize(q.codes, q.scale, spec).shape == x.shape


@pytest.mark.parametrize("text", SPECS)
@pytest.mark.parametrize("shape", [(0, 16), (4, 0)])
def test_nothing_stays_nothing(text, shape):
    spec = parse_spec(text)
    q = quantize(torch.ones(shape), spec)
    assert q.codes.shape == shape
    assert q.scale.shape == spec.grid(*shape)
    assert dequantize(q.codes, q.scale, spec, zero=q.zero).shape == shape


def test_values_with_gaps_give_contiguous_codes():
    spec = parse_spec("fp8_e4m3[4x4]")
    x = torch.randn(18, 10)
    q, whole = quantize(x.t(), spec), quantize(x.t().contiguous(), spec)
    assert q.codes.is_contiguous()
    assert torch.equal(bytes_of(q.codes), bytes_of(whole.codes))


def test_the_values_are_not_changed_and_codes_have_no_gradient():
    x = torch.randn(4, 8, requires_grad=True)
    before = x.detach().clone()
    q = quantize(x, parse_spec("int8[1x*]:zero"))
    assert torch.equal(x, before)
    assert not q.scale.requires_grad


def test_static_zero_points():
    spec = parse_spec("int8[1x*]:zero")
    x = torch.tensor([[0.0, 1.0, 2.0], [-3.0, 0.0, 3.0]])
    q = quantize(x, spec)
    again = quantize(x, spec, q.scale, q.zero)
    assert torch.equal(again.codes, q.codes)
    assert q.zero is not None
    assert q.zero.tolist() == [[-128], [0]]
    assert dequantize(q.codes, q.scale, spec, zero=q.zero)[:, 0].tolist()[0] == 0.0


def test_scale_and_zero_point_come_together():
    x, one = torch.ones(1, 4), torch.ones(1, 1)
    with pytest.raises(FormatError, match=r"was given a scale and no zero point"):
        quantize(x, parse_spec("int8[1x*]:zero"), one)
    with pytest.raises(FormatError, match=r"was given a zero point"):
        quantize(x, parse_spec("int8[1x*]"), one, one)
    with pytest.raises(FormatError, match=r"was given a zero point"):
        quantize(x, parse_spec("int8[1x*]:zero"), None, one)


def test_a_scale_of_another_size_is_refused():
    spec = parse_spec("fp8_e4m3[2x2]")
    codes = torch.zeros(5, 5).to(torch.float8_e4m3fn)
    with pytest.raises(FormatError, match=r"\[5, 5\] has a scale of shape \(2, 2\)[\s\S]*\(3, 3\)"):
        dequantize(codes, torch.ones(2, 2), spec)


@pytest.mark.parametrize(("text", "shape"), [("fp8_e4m3[2x2]", (3, 4, 4)), ("int8[*x*]", ())])
def test_tensors_without_rows_are_refused(text, shape):
    with pytest.raises(FormatError, match=r"cannot encode a tensor of shape"):
        quantize(torch.ones(shape), parse_spec(text))
