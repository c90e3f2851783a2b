"""The oracle against results worked out by hand."""

from __future__ import annotations

import pytest
import torch

from quantdock.kernels import oracle
from quantdock.numerics import CanonicalWeight, Segment
from quantdock.schemes import parse_scheme


def weight_of(scheme: str, codes: list[list[float]], scale: float) -> CanonicalWeight:
    spec = parse_scheme(scheme).weight
    dtype = torch.int8 if spec.element == "int8" else torch.float8_e4m3fn
    segment = Segment(spec=spec, codes=torch.tensor(codes).to(dtype), scale=torch.tensor([[scale]]))
    return CanonicalWeight(segments=(segment,), input_scale=torch.tensor([0.5]))


def test_weight_only_multiplies_what_the_codes_stand_for() -> None:
    scheme = "fp8_e4m3[*x*]"
    weight = weight_of(scheme, [[1.0, -2.0], [448.0, 0.0]], 0.5)
    x = torch.tensor([[3.0, 4.0]])
    result = oracle.linear(parse_scheme(scheme), weight, x, torch.tensor([10.0, 20.0]))
    assert result.tolist() == [[10 + 1.5 - 4.0, 20 + 672.0]]


def test_static_activations_are_rounded_and_clamped() -> None:
    scheme = "int8[*x*] x int8[*x*]"
    weight = weight_of(scheme, [[1, 1]], 1.0)
    x = torch.tensor([[0.6, 1000.0], [0.2, 0.0]])
    # 0.6 / 0.5 = 1.2 -> 1 -> 0.5; 2000 -> 127 -> 63.5; 0.4 -> 0
    assert oracle.linear(parse_scheme(scheme), weight, x).tolist() == [[64.0], [0.0]]


def test_sums_are_exact_where_f32_is_not() -> None:
    scheme = "int8[*x*]"
    weight = weight_of(scheme, [[1, 1, -1]], 1.0)
    x = torch.tensor([[2.0**30, 1.0, 2.0**30]])
    assert oracle.linear(parse_scheme(scheme), weight, x).tolist() == [[1.0]]


@pytest.mark.parametrize("shape", [(2,), (1, 3, 2), (2, 0, 2)])
def test_leading_dimensions_stay(shape: tuple[int, ...]) -> None:
    scheme = "fp8_e4m3[*x*]"
    weight = weight_of(scheme, [[1.0, 1.0]] * 5, 1.0)
    result = oracle.linear(parse_scheme(scheme), weight, torch.ones(shape, dtype=torch.float16))
    assert result.shape == (*shape[:-1], 5)
    assert result.dtype == torch.float16
    assert (result == 2).all()


def test_nan_stays_in_its_row_in_integers_too() -> None:
    scheme = "int8[*x*] x int8[*x*]"
    weight = weight_of(scheme, [[1, 1]], 1.0)
    result = oracle.linear(parse_scheme(scheme), weight, torch.tensor([[torch.nan, 1], [1, 1]]))
    assert result[0].isnan().all()
    assert result[1].item() == 2.0


def test_a_dynamic_scheme_ignores_a_stored_input_scale() -> None:
    scheme = "fp8_e4m3[*x*] x fp8_e4m3[1x*]:dynamic"
    weight = weight_of(scheme, [[1.0, 1.0]], 1.0)
    x = torch.tensor([[448.0, 1.0]])
    assert oracle.linear(parse_scheme(scheme), weight, x).tolist() == [[449.0]]


def test_a_stored_second_scale_lies_above_dynamic_ones() -> None:
    """The larger of two shards', 2, so that 24 = 6 * 2 * 2 and 3 = 6 * 2 * 0.25; 0.1 becomes 0."""
    spec = parse_scheme("fp8_e4m3[*x*] x fp4_e2m1[1x2]:e4m3:dynamic:second[*x*]").activation
    assert spec is not None
    x = torch.tensor([[24.0, 4.0, 3.0, 0.1]])
    found = oracle.quantized_activation(x, spec, torch.tensor([1.0, 2.0]))
    assert found.tolist() == [[24.0, 4.0, 3.0, 0.0]]
