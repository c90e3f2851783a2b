"""Layers of packed codes put together, under Triton's interpreter with a described GPU."""

from __future__ import annotations

import pytest
import torch

from integer_weights import make_integers
from quantdock.errors import FormatError
from quantdock.kernel import Problem
from quantdock.kernels import oracle
from quantdock.schemes import parse_scheme

SCHEMES = ("uint4[1x128]:zero", "int4[1x32]", "int8[1x*]", "uint8[1x64]:zero")


@pytest.fixture
def layer_of(interpreted, monkeypatch):
    """Return what makes layers, and a way to run them as if the CPU were an sm_80."""
    linear = interpreted("quantdock_cuda.packed_linear")
    module = interpreted("quantdock_cuda.packed_execution")
    device = interpreted("quantdock_cuda.device")
    features = interpreted("quantdock_cuda.archs").describe("sm_80").features
    facts = device.Device(arch="sm_80", features=features, num_sms=8, shared_bytes=227 << 10)
    monkeypatch.setattr(module, "device_of", lambda index: facts)
    monkeypatch.setattr(module, "counters", lambda index: torch.zeros(1 << 14, dtype=torch.int32))
    monkeypatch.setattr(module, "WORKSPACE_BYTES", 1)  # the weight takes turns
    monkeypatch.setattr(module, "_RESULTS", 1)

    def run(text, weight, x, bias, alone=False):
        n, k = weight.shape
        layer = linear.CudaPackedLinear(Problem(scheme=parse_scheme(text), n=n, k=k))
        tensors = layer.prepare(weight)
        packed = linear.PackedWeight(
            words=tensors[linear.WORDS],
            scale=tensors[linear.SCALE],
            zero=tensors.get(linear.ZERO),
            last=n,
        )
        out = torch.full((x.shape[0], n), torch.nan, dtype=x.dtype)
        run = module.PackedExecution(linear._packing(text, k), n, k, 0, alone)
        run(x, packed, bias, out)
        return out

    return run


@pytest.mark.parametrize(
    "m, has_bias", [(1, True), (20, False), (60, True), (130, False), (300, True)]
)
@pytest.mark.parametrize("text", SCHEMES)
def test_equals_the_oracle(layer_of, text, m, has_bias):
    weight = make_integers(text, [600], 288)
    x = torch.randint(-4, 5, (m, 288)).to(torch.float16)
    bias = torch.randn(600).to(torch.float16) if has_bias else None
    expected = oracle.linear(parse_scheme(text), weight, x, bias).float()
    found = layer_of(text, weight, x, bias).float()
    assert (found - expected).norm() / expected.norm() < (1e-3 if m <= 32 else 3e-3)


def test_an_x_of_another_width_is_refused(interpreted, layer_of):
    """One of half the columns has twice the rows, which could be taken for half as many."""
    module, packed = (
        interpreted(f"quantdock_cuda.{name}") for name in ("packed_execution", "packed_linear")
    )
    run = module.PackedExecution(packed._packing("int4[1x32]", 288), 600, 288, 0)
    with pytest.raises(FormatError, match=r"288 input features was given x of shape \(4, 144\)"):
        run._whole(torch.ones(4, 144), None, None, None, None, None, None)


def test_f32_is_not_rounded(layer_of):
    weight, x = make_integers(SCHEMES[0], [600], 288), torch.randn(3, 288)
    expected = oracle.linear(parse_scheme(SCHEMES[0]), weight, x)
    assert (layer_of(SCHEMES[0], weight, x, None) - expected).norm() / expected.norm() < 1e-6


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=str)
def test_rows_are_what_they_are_alone(layer_of, dtype):
    weight, bias = make_integers(SCHEMES[0], [200], 288), torch.randn(200).to(dtype)
    x = torch.randn(140, 288).to(dtype)
    together = layer_of(SCHEMES[0], weight, x, bias, alone=True)
    for rows in (slice(0, 1), slice(7, 8), slice(3, 20), slice(0, 64), slice(7, 139)):
        assert torch.equal(layer_of(SCHEMES[0], weight, x[rows], bias, alone=True), together[rows])
