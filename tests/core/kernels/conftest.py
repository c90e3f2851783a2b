"""Layers made up for the tests of kernels, and what a result may differ by."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import pytest
import torch
from torch import Tensor

from quantdock.kernels import oracle
from quantdock.numerics import CanonicalWeight, Segment, quantize
from quantdock.schemes import Scheme, parse_scheme

MakeWeight = Callable[..., CanonicalWeight]
# One step between neighbours of a dtype, relative to the larger: both results are rounded once.
STEP = {torch.bfloat16: 2.0**-7, torch.float16: 2.0**-10, torch.float32: 2.0**-22}


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Run with one thread, so that tests side by side do not wait for each other's."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def make_weight() -> MakeWeight:
    """Return a function that quantizes normal values into a weight of some shards."""

    def make(
        scheme: Scheme | str, sizes: Sequence[int], k: int, *, seed: int = 0
    ) -> CanonicalWeight:
        spec = parse_scheme(str(scheme)).weight
        activation = parse_scheme(str(scheme)).activation
        generator = torch.Generator().manual_seed(seed)
        segments = []
        for number, n in enumerate(sizes):
            values = torch.randn(n, k, generator=generator) * (1 + number)
            made = quantize(values, spec)
            segments.append(
                Segment(
                    spec=spec,
                    codes=made.codes,
                    scale=made.scale,
                    zero=made.zero,
                    second_scale=made.second_scale,
                )
            )
        is_static = activation is not None and activation.is_static
        return CanonicalWeight(
            segments=tuple(segments),
            input_scale=torch.linspace(0.02, 0.03, len(sizes)) if is_static else None,
        )

    return make


@pytest.fixture
def assert_near() -> Callable[..., None]:
    """Return a check: one step of the dtype, and f32 sums that err by 2^-20 of all magnitudes."""

    def check(
        result: Tensor,
        scheme: Scheme | str,
        weight: CanonicalWeight,
        x: Tensor,
        bias: Tensor | None,
    ) -> None:
        parsed = parse_scheme(str(scheme))
        expected = oracle.linear(parsed, weight, x, bias)
        assert result.shape == expected.shape
        assert result.dtype == expected.dtype == x.dtype
        rows = x.reshape(-1, x.shape[-1])
        if parsed.activation is not None:
            rows = oracle.quantized_activation(rows, parsed.activation, weight.input_scale)
        magnitudes = rows.double().abs() @ weight.dequantize().double().abs().T
        allowed = STEP[x.dtype] * expected.double().abs() + 2.0**-20 * magnitudes.view(
            expected.shape
        )
        error = (result.double() - expected.double()).abs()
        assert bool((error <= allowed).all()), float((error - allowed).max())

    return check
