"""A layer's steps put together, under Triton's interpreter with a described GPU."""

from __future__ import annotations

import pytest
import torch

from quantdock.kernels import oracle
from quantdock.numerics import quantize_weight
from quantdock.schemes import parse_scheme

pytestmark = pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")
SCHEMES = (
    "fp8_e4m3[1x*] x fp8_e4m3[1x*]:dynamic",
    "fp8_e4m3[128x128] x fp8_e4m3[1x128]:dynamic",
    "fp8_e4m3[*x*] x fp8_e4m3[*x*]:dynamic",
    "int8[1x*] x int8[1x*]:dynamic",
    "fp8_e4m3[128x128]",
)


@pytest.fixture
def execution(interpreted, monkeypatch):
    """Return ``execution`` for an sm_89 that nobody has."""
    device = interpreted("quantdock_cuda.device")
    module = interpreted("quantdock_cuda.execution")
    features = interpreted("quantdock_cuda.archs").describe("sm_89").features
    facts = device.Device(arch="sm_89", features=features, num_sms=8, shared_bytes=99 << 10)
    monkeypatch.setattr(module, "device_of", lambda index: facts)
    monkeypatch.setattr(module, "converts", lambda spec, features: False)  # by PTX

    class Counters:
        def __call__(self, index):
            return torch.zeros(1 << 14, dtype=torch.int32)

        def slots(self, index):
            """Return none: the interpreter runs programs one after the other."""

    monkeypatch.setattr(module, "counters", Counters())
    return module.Execution


@pytest.mark.parametrize("text", SCHEMES)
@pytest.mark.parametrize("m", [1, 20, 130])
def test_equals_the_oracle(execution, text, m):
    """Loosely: of the values that the interpreter rounds to fp8, a few come out halved."""
    scheme, n, k = parse_scheme(text), 160, 272
    weight = quantize_weight(torch.randn(n, k), scheme.weight)
    codes, scale = weight.segments[0].codes, weight.segments[0].scale
    x, bias = torch.randn(m, k), torch.randn(n)
    run = execution(text, n, k, scale.shape[0], 0, torch.float32, torch.float32, 0)
    expected = oracle.linear(scheme, weight, x, bias)
    found = run(x, codes, scale, None, bias)
    allowed = 0.2 if scheme.activation is not None and "fp8" in text else 1e-5
    assert (found - expected).norm() / expected.norm() < allowed
