"""Activations rounded in f32 against codes packed and unpacked, bit for bit."""

from __future__ import annotations

import pytest
import torch

from quantdock.formats import ELEMENTS, parse_spec
from quantdock.kernels.activation import quantize_rows, round_to_element_, whole_range
from quantdock.kernels.oracle import quantized_activation
from quantdock.numerics import decode, encode

EIGHT_BITS = [e.name for e in ELEMENTS.values() if e.bits == 8]
SPECS = [
    f"{element}[{tile}]{marks}:dynamic"
    for element in ("fp8_e4m3", "fp8_e5m2", "fp8_e4m3fnuz", "fp8_e5m2fnuz", "int8")
    for tile, marks in (("*x*", ""), ("1x*", ""), ("1x128", ""), ("1x32", ":e8m0:ceil"))
]


def values_of_every_size() -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    sizes = torch.logspace(-8, 6, 20000, base=10)
    normal = torch.randn(20000, generator=generator) * sizes
    halves = torch.arange(-600, 601) / 2.0
    tiny = torch.arange(-64, 65) * 2.0**-18
    return torch.cat([normal, halves, tiny, torch.tensor([0.0, torch.inf, -torch.inf])])


@pytest.mark.parametrize("element", EIGHT_BITS)
def test_rounding_is_that_of_encode(element: str) -> None:
    values = values_of_every_size()
    expected = decode(encode(values, element), element)
    assert torch.equal(round_to_element_(values.clone(), element), expected)


@pytest.mark.parametrize("element", EIGHT_BITS)
def test_nan_stays_nan(element: str) -> None:
    assert round_to_element_(torch.tensor([torch.nan, 1.0]), element).isnan().tolist() == [
        True,
        False,
    ]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("k", [64, 200])
def test_dynamic_values_are_those_of_numerics(spec: str, dtype: torch.dtype, k: int) -> None:
    x = (torch.randn(5, k, generator=torch.Generator().manual_seed(1)) * 3).to(dtype)
    x[3] = 0
    before = x.clone()
    parsed = parse_spec(spec)
    values, scale = quantize_rows(x, parsed, whole_range(x, parsed, None, None))
    result = values if scale is None else values * scale
    assert torch.equal(result, quantized_activation(x, parsed, None))
    assert torch.equal(x, before)


@pytest.mark.parametrize("spec", ["fp8_e4m3[*x*]", "int8[*x*]"])
def test_static_scales_fold_to_their_maximum(spec: str) -> None:
    x = torch.linspace(-9, 9, 60).view(3, 20)
    scales = torch.tensor([0.01, 0.05, 0.02])
    parsed = parse_spec(spec)
    whole = whole_range(x, parsed, scales, None)
    assert whole is not None
    assert whole.scale.item() == pytest.approx(0.05)
    values, scale = quantize_rows(x, parsed, whole)
    assert torch.equal(values * scale, quantized_activation(x, parsed, scales))


def test_a_static_scale_of_zero_gives_zeros() -> None:
    parsed = parse_spec("fp8_e4m3[*x*]")
    x = torch.tensor([[0.0, 1.0]])
    values, scale = quantize_rows(x, parsed, whole_range(x, parsed, torch.zeros(1), None))
    assert (values * scale).tolist() == [[0.0, 0.0]]


def test_rows_with_own_scales_have_no_whole_one() -> None:
    assert whole_range(torch.ones(2, 4), parse_spec("fp8_e4m3[1x*]:dynamic"), None, None) is None
    assert whole_range(torch.ones(2, 4), None, None, None) is None


def test_groups_of_a_strided_or_expanded_tensor() -> None:
    parsed = parse_spec("fp8_e4m3[1x8]:dynamic")
    row = torch.linspace(-3, 3, 16)
    for x in (row.expand(4, 16), row.view(2, 8).t().reshape(1, 16), torch.randn(16, 3).t()):
        values, scale = quantize_rows(x, parsed, None)
        assert scale is None
        assert torch.equal(values, quantized_activation(x.contiguous(), parsed, None))
