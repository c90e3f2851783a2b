from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from quantdock.errors import FormatError
from quantdock.formats import ELEMENTS
from quantdock.numerics import decode, encode, torch_dtype

FLOATS = {
    "fp8_e4m3": "e4m3fn",
    "fp8_e5m2": "e5m2",
    "fp8_e4m3fnuz": "e4m3fnuz",
    "fp8_e5m2fnuz": "e5m2fnuz",
}
INTEGERS = [name for name, element in ELEMENTS.items() if not element.is_float]
ENCODE_VECTORS = [
    ("fp8_e4m3", "e4m3fn_from_bf16"),
    ("fp8_e4m3", "e4m3fn_from_f16"),
    ("fp8_e4m3", "e4m3fn_random"),
    ("fp8_e4m3", "e4m3fn_tricky"),
    ("fp8_e4m3fnuz", "e4m3fnuz_from_bf16"),
    ("fp8_e4m3fnuz", "e4m3fnuz_random"),
    ("fp8_e4m3fnuz", "e4m3fnuz_tricky"),
    ("fp8_e5m2", "e5m2_from_f16"),
    ("fp8_e5m2fnuz", "e5m2fnuz_random"),
    ("fp8_e5m2fnuz", "e5m2fnuz_tricky"),
]


def every_code(element: str) -> torch.Tensor:
    return torch.arange(256, dtype=torch.uint8).view(torch_dtype(ELEMENTS[element].storage))


def same_bits_or_nan(a: torch.Tensor, b: torch.Tensor) -> bool:
    as_int = {4: torch.int32, 2: torch.int16, 1: torch.uint8}[a.element_size()]
    both_nan = a.to(torch.float32).isnan() & b.to(torch.float32).isnan()
    return bool(((a.view(as_int) == b.view(as_int)) | both_nan).all())


@pytest.mark.parametrize("element", ["fp8_e4m3fnuz", "fp8_e5m2fnuz"])
def test_decode_equals_ml_dtypes_over_all_codes(vector, element):
    v = vector(f"cast-decode/{FLOATS[element]}")
    codes = v["codes"].view(torch_dtype(ELEMENTS[element].storage))
    assert same_bits_or_nan(decode(codes, element), v["f32"])


@pytest.mark.parametrize("element", ["fp8_e4m3", "fp8_e5m2"])
def test_decode_equals_torch_and_ml_dtypes_over_all_codes(vector, element):
    v = vector(f"cast-torch/{FLOATS[element]}")
    codes = v["all_codes"].view(torch_dtype(ELEMENTS[element].storage))
    assert same_bits_or_nan(decode(codes, element), v["decoded"])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("element", FLOATS)
def test_decode_is_exact_in_every_dtype(element, dtype):
    codes = every_code(element)
    real = decode(codes, element, dtype)
    assert real.dtype == dtype
    assert same_bits_or_nan(real, codes.to(dtype))
    assert same_bits_or_nan(real.to(torch.float32), codes.to(torch.float32))


@pytest.mark.parametrize("element", FLOATS)
def test_encode_undoes_decode_for_every_code(element):
    codes = every_code(element)
    real = decode(codes, element)
    finite = real.isfinite()
    assert same_bits_or_nan(encode(real[finite], element), codes[finite])
    assert decode(encode(real[real.isnan()], element), element).isnan().all()


@pytest.mark.parametrize(("element", "name"), ENCODE_VECTORS)
def test_encode_equals_ml_dtypes_and_saturates(vector, element, name):
    v = vector(f"cast-encode/{name}")
    x = next(v[key] for key in ("f32", "bf16", "f16") if key in v)
    codes = encode(x, element)
    theirs = v.get("codes_saturated", v["codes"]).view(codes.dtype)
    top = ELEMENTS[element].largest
    inside = x.isnan() | (x.to(torch.float32).abs() <= top)
    assert same_bits_or_nan(codes[inside], theirs[inside])
    if "codes_saturated" in v:
        assert same_bits_or_nan(codes, theirs)
    assert decode(codes[~inside], element).abs().eq(top).all()


@pytest.mark.parametrize(("element", "beyond"), [("fp8_e4m3", 0), ("fp8_e5m2", 27)])
def test_encode_equals_torch_except_that_it_saturates(vector, element, beyond):
    v = vector(f"cast-torch/{FLOATS[element]}")
    codes = encode(v["f32"], element)
    theirs = v["codes"].view(codes.dtype)
    nan = v["f32"].isnan()
    different = (codes.view(torch.uint8) != theirs.view(torch.uint8)) & ~nan
    assert different.sum() == beyond
    assert (v["f32"][different].abs() > ELEMENTS[element].largest).all()


@pytest.mark.parametrize("element", FLOATS)
def test_infinity_saturates_and_nan_stays(element):
    top = ELEMENTS[element].largest
    x = torch.tensor([torch.inf, -torch.inf, top * 1.5, torch.nan])
    real = decode(encode(x, element), element)
    assert real[:3].tolist() == [top, -top, top]
    assert real[3].isnan()


@pytest.mark.parametrize("element", INTEGERS)
def test_integers_round_to_even_saturate_and_turn_nan_into_zero(element):
    kind = ELEMENTS[element]
    x = torch.tensor([0.5, 1.5, 2.5, 1e9, -1e9, torch.inf, -torch.inf, torch.nan])
    codes = encode(x, element)
    assert codes.dtype == torch_dtype(kind.storage)
    high, low = int(kind.largest), int(kind.lowest)
    near = [min(2, high)] * 2
    assert codes.tolist() == [0, *near, high, low, high, low, 0]


@pytest.mark.parametrize("element", INTEGERS)
def test_integer_codes_decode_by_value(element):
    kind = ELEMENTS[element]
    codes = torch.arange(kind.lowest, kind.largest + 1).to(torch_dtype(kind.storage))
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        assert decode(codes, element, dtype).tolist() == codes.tolist()


@given(st.lists(st.floats(width=32), min_size=1, max_size=50), st.sampled_from(list(FLOATS)))
def test_no_code_is_nearer(values, element):
    x = torch.tensor(values, dtype=torch.float32)
    real = decode(encode(x, element), element).to(torch.float64)
    every = decode(every_code(element), element).to(torch.float64)
    every = every[every.isfinite()]
    known = x[~x.isnan()].to(torch.float64)
    known = known.clamp(-ELEMENTS[element].largest, ELEMENTS[element].largest)
    nearest = (every[None, :] - known[:, None]).abs().amin(dim=1)
    assert torch.equal((real[~x.isnan()] - known).abs(), nearest)
    assert real[x.isnan()].isnan().all()


@pytest.mark.parametrize("shape", [(0,), (3, 0), (0, 5), (), (2, 3, 4)])
def test_any_shape(shape):
    codes = encode(torch.ones(shape), "fp8_e4m3")
    assert codes.shape == shape
    assert decode(codes, "fp8_e4m3").shape == shape


def test_codes_that_are_not_contiguous():
    codes = every_code("fp8_e4m3").view(16, 16).t()
    assert same_bits_or_nan(decode(codes, "fp8_e4m3"), codes.to(torch.float32))


def test_raw_bytes_and_unknown_elements_are_refused():
    raw = torch.zeros(4, dtype=torch.uint8)
    with pytest.raises(FormatError, match=r"fp8_e4m3 codes are torch\.float8_e4m3fn, not torch\.u"):
        decode(raw, "fp8_e4m3")
    with pytest.raises(FormatError, match=r"No element type is called 'fp8'"):
        encode(torch.ones(1), "fp8")
