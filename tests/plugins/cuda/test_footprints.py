"""What the plan says that kernels keep of a weight is what they keep."""

from __future__ import annotations

import pytest
import torch

from integer_weights import make_integers, with_half_scales
from quantdock import dispatch_for
from quantdock.kernel import Problem
from quantdock.kernels.row_by_row import kernel_of
from quantdock.numerics import quantize_weight
from quantdock.plan.layer import memory_bytes
from quantdock.schemes import parse_scheme
from quantdock.testing import use_plugins

N, K = 128, 1024
INTEGERS = ("uint4[1x128]:zero", "uint4[1x32]:zero", "int4[1x128]", "int2[1x64]", "int5[1x*]")
FLOATS = (
    "fp8_e4m3[128x128] x fp8_e4m3[1x128]:dynamic",
    "fp8_e4m3[1x32]:e8m0:even",
    "fp4_e2m1[1x32]:e8m0:even",
    "fp4_e2m1[1x16]:e4m3:second[*x*]",
    "fp6_e3m2[1x32]:e8m0:even",
)


def kept_and_planned(arch, text, weight):
    scheme = parse_scheme(text)
    problem = Problem(scheme=scheme, n=N, k=K, shards=(N,), dtype="bfloat16")
    with use_plugins("quantdock_cuda.plugin"):
        chosen = dispatch_for(f"cuda:{arch}").select(problem)
        tensors = kernel_of(chosen).prepare(weight)
    planned = memory_bytes(scheme, N, K, "bfloat16", footprint=chosen.kernel.footprint)
    return sum(tensor.nbytes for tensor in tensors.values()), planned


@pytest.mark.parametrize("text", INTEGERS)
def test_integers(text):
    kept, planned = kept_and_planned("sm_80", text, make_integers(text, (N,), K))
    assert kept == planned


@pytest.mark.parametrize("text", [text for text in INTEGERS if "zero" in text])
def test_scales_and_zero_points_that_are_halves(text, monkeypatch):
    monkeypatch.setattr("quantdock_cuda.packed_linear.reads_half", lambda tensor: True)
    weight = with_half_scales(make_integers(text, (N,), K))
    kept, planned = kept_and_planned("sm_90", text, weight)
    assert kept == planned


@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
@pytest.mark.parametrize("text", FLOATS)
def test_floats(text, arch):
    """Scales of the second level, one for each row at most, are not counted."""
    if "fp8_e4m3[1x128]" in text and arch == "sm_80":
        pytest.skip("the scheme runs weight-only there")
    weight = quantize_weight(torch.randn(N, K), parse_scheme(text).weight)
    kept, planned = kept_and_planned(arch, text, weight)
    assert 0 <= kept - planned <= 4 * N
