from __future__ import annotations

import pytest
import torch

from quantdock.errors import FormatError
from quantdock.numerics import decode, double_scale, from_fnuz, halve_scale, to_fnuz

EVERY_CODE = torch.arange(256, dtype=torch.uint8)
FN = EVERY_CODE.view(torch.float8_e4m3fn)


@pytest.mark.parametrize("name", ["all_codes", "per_tensor", "block128"])
def test_conversion_equals_vllm(vector, name):
    v = vector(f"fnuz-convert/{name}")
    codes, scale = to_fnuz(v["weight_fn"].view(torch.float8_e4m3fn), v["scale_fn"])
    assert torch.equal(codes.view(torch.uint8), v["weight_fnuz"])
    assert torch.equal(scale, v["scale_fnuz"])
    assert torch.equal(double_scale(v["input_scale_fn"]), v["input_scale_fnuz"])
    assert torch.equal(2 * decode(codes, "fp8_e4m3fnuz"), v["value"])


def test_every_code_keeps_its_value():
    scale = torch.tensor(0.75)
    codes, doubled = to_fnuz(FN, scale)
    before, after = decode(FN, "fp8_e4m3") * scale, decode(codes, "fp8_e4m3fnuz") * doubled
    nan = before.isnan()
    assert nan.sum() == 2
    assert torch.equal(after.isnan(), nan)
    assert torch.equal(after[~nan], before[~nan])


def test_the_way_back_gives_every_code_but_negative_zero():
    codes, scale = from_fnuz(*to_fnuz(FN, torch.tensor(0.75)))
    changed = EVERY_CODE[codes.view(torch.uint8) != EVERY_CODE]
    assert changed.tolist() == [0x80, 0xFF]  # -0 is 0 now, and the two NaNs are one
    assert codes.view(torch.uint8)[0x80] == 0
    assert decode(codes, "fp8_e4m3")[0xFF].isnan()
    assert scale == 0.75


def test_a_second_conversion_is_refused():
    once = to_fnuz(FN, torch.tensor(1.0))
    with pytest.raises(
        FormatError, match=r"float8_e4m3fnuz, not torch\.float8_e4m3fn[\s\S]*Convert once"
    ):
        to_fnuz(*once)
    with pytest.raises(FormatError, match=r"float8_e4m3fn, not torch\.float8_e4m3fnuz"):
        from_fnuz(FN, torch.tensor(1.0))


def test_codes_beyond_e4m3fn_have_no_way_back():
    codes = torch.tensor([240.0, -240.0, 1.0]).to(torch.float8_e4m3fnuz)
    with pytest.raises(FormatError, match=r"2 of 3 e4m3fnuz codes have no e4m3fn code"):
        from_fnuz(codes, torch.tensor(1.0))


@pytest.mark.parametrize("storage", [torch.uint8, torch.float8_e8m0fnu])
def test_exponent_bytes_move_by_one(storage):
    stored = torch.tensor([0, 1, 126, 253, 254, 255], dtype=torch.uint8).view(storage)
    doubled, halved = double_scale(stored), halve_scale(stored)
    assert doubled.dtype == halved.dtype == storage
    assert doubled.view(torch.uint8).tolist() == [1, 2, 127, 254, 254, 255]
    assert halved.view(torch.uint8).tolist() == [0, 0, 125, 252, 253, 255]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_float_scales_keep_their_dtype(dtype):
    scale = torch.tensor([0.5, 3.0], dtype=dtype)
    assert double_scale(scale).tolist() == [1.0, 6.0]
    assert halve_scale(scale).tolist() == [0.25, 1.5]
    assert double_scale(scale).dtype == dtype
