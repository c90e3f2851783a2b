"""Faults of values, on tensors made for them."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from quantdock.diagnosis.tensor_values import input_scale_faults, plain_faults, weight_faults
from quantdock.formats import parse_spec
from quantdock.numerics import CanonicalWeight, Segment, quantize_weight


def weight(spec: str = "fp8_e4m3[1x*]", n: int = 4, k: int = 32) -> CanonicalWeight:
    return quantize_weight(
        torch.randn(n, k, generator=torch.Generator().manual_seed(0)), parse_spec(spec)
    )


def segment(spec: str, codes: torch.Tensor, scale: list[list[float]]) -> CanonicalWeight:
    made = Segment(spec=parse_spec(spec), codes=codes, scale=torch.tensor(scale))
    return CanonicalWeight(segments=(made,))


def texts(faults) -> list[str]:
    return [fault.text for fault in faults]


@pytest.mark.parametrize(
    "spec", ["fp8_e4m3[1x*]", "fp8_e5m2[*x*]", "fp8_e4m3fnuz[1x32]", "int8[1x*]"]
)
def test_a_healthy_weight_has_no_fault(spec):
    assert texts(weight_faults(weight(spec), "float16")) == []


def test_a_zero_scale_over_zero_codes_is_fine():
    codes = torch.tensor([[0.0, -0.0], [1.0, 2.0]]).to(torch.float8_e4m3fn)
    assert texts(weight_faults(segment("fp8_e4m3[1x*]", codes, [[0.0], [0.5]]), "float32")) == []
    lost = segment("fp8_e4m3[1x*]", codes, [[0.5], [0.0]])
    assert texts(weight_faults(lost, "float32")) == [
        "has 2 weights that are not zero under a scale of 0"
    ]


def test_an_e8m0_byte_read_as_a_number_is_absurd():
    codes = torch.full((1, 32), 448.0).to(torch.float8_e4m3fn)
    found = texts(weight_faults(segment("fp8_e4m3[1x32]", codes, [[119.0]]), "float32"))
    assert found == ["has scales from 1.2e+02 to 1.2e+02, weights up to 5.3e+04"]


@pytest.mark.parametrize(
    ("values", "dtype", "found"),
    [
        ([[1.0, -2.0]], "float16", []),
        ([[0.0, 0.0]], "float32", ["is all zeros"]),
        ([0.0, 0.0], "float32", []),
        ([[1e5, 0.0]], "float16", ["reaches 1e+05, and float16 ends at 65504"]),
        ([[1e5, 0.0]], "bfloat16", []),
        ([[-torch.inf, 0.0]], "bfloat16", ["holds infinity"]),
        ([], "float32", []),
    ],
)
def test_plain_tensors(values, dtype, found):
    assert texts(plain_faults(torch.tensor(values), dtype)) == found


@pytest.mark.parametrize(("value", "level"), [(0.02, None), (1.0, "warn"), (0.0, "fail")])
def test_input_scales(value, level):
    faults = list(input_scale_faults(torch.tensor([value])))
    assert [fault.level for fault in faults] == ([level] if level else [])


@pytest.mark.parametrize(("factor", "found"), [(1.0, False), (1e9, True), (1e-12, True)])
def test_a_second_scale_counts(factor, found):
    """One that was meant to divide makes weights absurd, whatever the scales below it are."""
    made = weight("fp4_e2m1[1x16]:e4m3:second[*x*]")
    (part,) = made.segments
    second = replace(part, second_scale=part.second_scale * factor)
    told = texts(weight_faults(replace(made, segments=(second,)), "bfloat16"))
    assert any("under a second scale of" in text for text in told) is found
