"""Weight-only int8 through torch's own kernel, and the cases that it must not get."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from quantdock.kernel import Problem
from quantdock.kernels import int8_pack as module
from quantdock.kernels.int8_pack import MOST_ROWS, Int8Pack, agrees_with_definition
from quantdock.numerics import CanonicalWeight
from quantdock.schemes import parse_scheme

Make = Callable[..., CanonicalWeight]


def layer(scheme: str, weight: CanonicalWeight) -> tuple[Int8Pack, dict[str, torch.Tensor]]:
    n, k = weight.shape
    sizes = tuple(s.codes.shape[0] for s in weight.segments)
    kernel = Int8Pack(Problem(scheme=parse_scheme(scheme), n=n, k=k, shards=sizes))
    return kernel, kernel.prepare(weight)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the rows of every call that torch's kernel gets."""
    rows = []
    real = module._product

    def recording(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        rows.append(x.shape[0])
        return real(x, weight)

    assert agrees_with_definition() in (True, False)  # tried before, not counted
    monkeypatch.setattr(module, "_product", recording)
    return rows


def test_torchs_kernel_is_right_here() -> None:
    assert agrees_with_definition() is True


@pytest.mark.parametrize("m", [0, 1, 2, MOST_ROWS, MOST_ROWS + 1, 40])
@pytest.mark.parametrize(("scheme", "sizes"), [("int8[1x*]", [96, 33]), ("int8[*x*]", [64])])
def test_few_rows_take_torchs_kernel(
    scheme: str, sizes: list[int], m: int, make_weight: Make, calls: list[int]
) -> None:
    """Tolerance 2^-7: the product is rounded to bfloat16 before and after its scale."""
    weight = make_weight(scheme, sizes, 208)
    kernel, tensors = layer(scheme, weight)
    x = torch.randn(m, 208, generator=torch.Generator().manual_seed(m)).bfloat16()
    bias = torch.linspace(-5, 5, sum(sizes))
    result = kernel.apply(tensors, x, bias)
    expected = x.double() @ weight.dequantize().double().T + bias.double()
    assert result.dtype == torch.bfloat16
    assert result.shape == expected.shape
    magnitudes = x.double().abs() @ weight.dequantize().double().abs().T
    error = (result.double() - expected).abs()
    assert bool((error <= 2.0**-7 * expected.abs() + 2.0**-8 * magnitudes / 16).all())
    assert calls == ([m] if 0 < m <= MOST_ROWS else [])


def test_unaligned_rows_and_codes_are_copied_first(make_weight: Make, calls: list[int]) -> None:
    weight = make_weight("int8[1x*]", [32], 64)
    buffer = torch.empty(32 * 64 + 1, dtype=torch.int8)
    segment = weight.segments[0]
    shifted = buffer[1:].view(32, 64).copy_(segment.codes)
    object.__setattr__(segment, "codes", shifted)
    kernel, tensors = layer("int8[1x*]", weight)
    assert tensors["weight"].data_ptr() % 64 == 0
    rows = torch.ones(64 * 2 + 1, dtype=torch.bfloat16)[1:].view(2, 64)
    expected = weight.dequantize().sum(1)
    result = kernel.apply(tensors, rows, None)
    assert torch.allclose(result.float(), expected.expand(2, -1), rtol=2.0**-7, atol=0.1)
    assert calls == [2]


@pytest.mark.parametrize("reason", ["float32 x", "columns", "wrong on this processor"])
def test_what_torchs_kernel_cannot_do_goes_to_the_reference(
    reason: str, make_weight: Make, calls: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    k = 72 if reason == "columns" else 64
    if reason == "wrong on this processor":
        monkeypatch.setattr(module, "agrees_with_definition", lambda: False)
    weight = make_weight("int8[1x*]", [32], k)
    kernel, tensors = layer("int8[1x*]", weight)
    x = torch.ones(2, k, dtype=torch.float32 if reason == "float32 x" else torch.bfloat16)
    result = kernel.apply(tensors, x, None)
    expected = weight.dequantize().sum(1).expand(2, -1)
    assert torch.allclose(result.float(), expected, rtol=2.0**-7, atol=1e-3)
    assert calls == []


def test_going_back_gives_every_bit(make_weight: Make) -> None:
    weight = make_weight("int8[*x*]", [16, 8], 32)
    kernel, tensors = layer("int8[*x*]", weight)
    for old, new in zip(weight.segments, kernel.restore(tensors).segments, strict=True):
        assert torch.equal(old.codes, new.codes)
        assert torch.equal(old.scale, new.scale)
