"""int8 x int8 through torch's integer product: exact, or not used."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from integer_weights import assert_same, layer_of, make_integers
from quantdock.kernels import int8_mm as module
from quantdock.kernels.int8_mm import Int8Mm, agrees_with_definition
from quantdock.kernels.scaled_linear import ScaledLinear
from quantdock.numerics import CanonicalWeight, Segment
from quantdock.schemes import parse_scheme

ACTIVATIONS = ("int8[*x*]", "int8[*x*]:dynamic", "int8[1x*]:dynamic")


@pytest.fixture(autouse=True)
def exact(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compute the product by its definition where this processor's is not exact."""
    if not agrees_with_definition():
        by_definition = lambda x, w: (x.double() @ w.double()).to(torch.int32)  # noqa: E731
        monkeypatch.setattr(torch, "_int_mm", by_definition)
        monkeypatch.setattr(module, "agrees_with_definition", lambda: True)


@settings(max_examples=60, deadline=None)
@given(
    tile=st.sampled_from(["*x*", "1x*"]),
    activation=st.sampled_from(ACTIVATIONS),
    multiplier=st.sampled_from(["", " + input multiplier"]),
    sizes=st.lists(st.integers(1, 60), min_size=1, max_size=3),
    k=st.integers(1, 300),
    m=st.sampled_from([0, 1, 3, 33]),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
)
def test_it_is_the_reference_to_the_last_bits(
    tile: str,
    activation: str,
    multiplier: str,
    sizes: list[int],
    k: int,
    m: int,
    dtype: torch.dtype,
) -> None:
    """Both sum the same integers exactly; the order of two f32 factors may differ."""
    scheme = f"int8[{tile}] x {activation}{multiplier}"
    weight = make_integers(scheme, sizes, k, seed=k)
    kernel, tensors = layer_of(scheme, weight, Int8Mm)
    assert_same(weight, kernel.restore(tensors))
    x = torch.randn(m, k, generator=torch.Generator().manual_seed(m)).to(dtype)
    bias = torch.linspace(-2, 2, sum(sizes)).to(dtype)
    reference, plain = layer_of(scheme, weight, ScaledLinear)
    result, expected = kernel.apply(tensors, x, bias), reference.apply(plain, x, bias)
    assert result.dtype == expected.dtype == dtype
    step = 2.0**-21 if dtype == torch.float32 else 2.0**-7
    assert torch.allclose(result, expected, rtol=step, atol=1e-5)


def layer(scheme: str, codes: torch.Tensor, input_scale: float | None = None):
    spec = parse_scheme(scheme).weight
    segment = Segment(spec=spec, codes=codes, scale=torch.full(spec.grid(*codes.shape), 0.5))
    static = None if input_scale is None else torch.tensor([input_scale])
    return layer_of(scheme, CanonicalWeight(segments=(segment,), input_scale=static), Int8Mm)


@pytest.mark.parametrize("m", [1, 5])
def test_sums_beyond_32_bits(m: int) -> None:
    k = 262_144
    codes = torch.full((16, k), 127, dtype=torch.int8)
    kernel, tensors = layer("int8[1x*] x int8[1x*]:dynamic", codes)
    result = kernel.apply(tensors, torch.full((m, k), 127.0), None)
    assert result.double().numpy() == pytest.approx(4_228_120_576 * 0.5, rel=2.0**-23)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_nan_stays_in_its_row_and_infinity_saturates(activation: str) -> None:
    static = 0.01 if activation == "int8[*x*]" else None
    kernel, tensors = layer(f"int8[1x*] x {activation}", torch.ones(4, 8, dtype=torch.int8), static)
    x = torch.ones(3, 8)
    x[1, 3] = torch.nan
    result = kernel.apply(tensors, x, None)
    rows = [0, 1, 2] if activation == "int8[*x*]:dynamic" else [1]
    assert result.isnan().all(dim=1).nonzero().flatten().tolist() == rows
    if static:
        assert kernel.apply(tensors, torch.full((1, 8), torch.inf), None)[0, 0].item() == (
            pytest.approx(8 * 1.27 * 0.5)
        )


def test_a_processor_that_saturates_gets_the_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    def saturates(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        raise AssertionError("it must not be called")

    monkeypatch.setattr(torch, "_int_mm", saturates)
    monkeypatch.setattr(module, "agrees_with_definition", lambda: False)
    kernel, tensors = layer("int8[1x*] x int8[1x*]:dynamic", torch.ones(4, 8, dtype=torch.int8))
    result = kernel.apply(tensors, torch.ones(2, 8), None)
    assert result.numpy() == pytest.approx(4.0, rel=1e-6)


def test_extreme_values_find_a_product_that_saturates(monkeypatch: pytest.MonkeyPatch) -> None:
    def saturates(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        pairs = x.double().view(len(x), -1, 2)[:, :, :, None] * w.double().view(-1, 2, w.shape[1])
        return pairs.sum(dim=2).clamp(-(2.0**15), 2.0**15 - 1).sum(dim=1).to(torch.int32)

    monkeypatch.setattr(torch, "_int_mm", saturates)
    agrees_with_definition.cache_clear()
    assert agrees_with_definition() is False
    agrees_with_definition.cache_clear()
