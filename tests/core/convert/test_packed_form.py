"""Packed floats as dialects name them; second scales as divisors."""

from __future__ import annotations

import pytest
import torch

from quantdock.configs.packed_floats import PackedNames
from quantdock.convert.packed_form import divisor_of, float_form, packed_form, packed_misfits
from quantdock.convert.rounding import round_weight
from quantdock.errors import SaveError
from quantdock.schemes import parse_scheme

NVFP4 = parse_scheme("fp4_e2m1[1x16]:e4m3:second[*x*]")


def test_reciprocals_of_f32_come_back_whatever_they_were():
    torch.manual_seed(0)
    stored = torch.rand(20_000) * torch.tensor([1e-30, 1.0, 3.0, 1e30]).repeat(5_000)
    assert torch.equal(divisor_of(stored.reciprocal()).reciprocal(), stored.reciprocal())


def test_a_scale_that_is_no_reciprocal_is_never_rounded_in_silence():
    lost = torch.tensor([1.0, 1.999999880790711, 1.9999996423721313])
    divisor_of(lost[:1])
    with pytest.raises(SaveError, match=r"second scale of 1\.9999") as caught:
        divisor_of(lost)
    assert "no f32 number has a reciprocal" in str(caught.value)
    assert "--to modelopt keeps it" in caught.value.todo


@pytest.mark.parametrize("divides", [True, False])
def test_names_and_levels_are_those_of_the_dialect(divides):
    names = PackedNames(scale=("s",), second="second", divides=divides)
    _, encode = packed_form("codes", names, (1,))
    weight = round_weight(torch.tensor([[6.0, -3.0] * 8]), NVFP4.weight, "float8_e4m3fn")
    tensors = encode(NVFP4, weight, "float8_e4m3fn")
    assert tensors["codes"].tolist() == [[0xD7] * 8]
    assert tensors["s"].dtype == torch.float8_e4m3fn and tensors["s"].item() == 448.0
    (segment,) = weight.segments
    second = segment.second_scale.reshape(1)
    assert torch.equal(tensors["second"], 1 / second if divides else second)


def test_layers_of_one_code_a_byte_are_stored_beside_them():
    describe, _ = float_form("codes", PackedNames(), ())
    described = describe(parse_scheme("fp8_e4m3[1x32]:e8m0:ceil"), 4, 64, "uint8")
    assert described["weight"].dtype == "float8_e4m3fn"
    assert list(packed_misfits(NVFP4, 4, 24)) == ["K=24 is no multiple of the group size, 16"]
    assert list(packed_misfits(parse_scheme("fp8_e4m3[1x32]:e8m0:ceil"), 4, 24)) == []
