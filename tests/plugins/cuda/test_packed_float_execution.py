"""Layers of fp4 codes in blocks that go through floats, under Triton's interpreter, and tiles."""

from __future__ import annotations

import pytest
import torch

from quantdock.kernels import oracle
from quantdock.numerics import quantize_weight
from quantdock.schemes import parse_scheme
from quantdock_cuda.archs import describe
from quantdock_cuda.device import Device
from quantdock_cuda.packed_alone import alone_tile
from quantdock_cuda.packed_tiling import rows_of_bucket, tile_for
from quantdock_triton.packed_layout import float_packing_of

SCHEMES = ("fp4_e2m1[1x16]:e4m3:second[*x*]", "fp4_e2m1[1x32]:e8m0:even")
HOPPER = Device(
    arch="sm_90", features=describe("sm_90").features, num_sms=132, shared_bytes=227 << 10
)


@pytest.fixture
def result_of(interpreted, monkeypatch):
    """Return what runs a layer as if the CPU were an sm_90, the weight in turns."""
    stored = interpreted("quantdock_cuda.small_float_tensors")
    module = interpreted("quantdock_cuda.packed_float_execution")
    for owner in (module.packed_execution, interpreted("quantdock_cuda.small_float_execution")):
        monkeypatch.setattr(owner, "device_of", lambda index: HOPPER)
    monkeypatch.setattr(module.packed_execution, "WORKSPACE_BYTES", 1)
    monkeypatch.setattr(module.packed_execution, "_RESULTS", 1)

    def run(text, weight, x, bias, alone=False):
        spec, (n, k) = parse_scheme(text).weight, weight.shape
        tensors = stored.in_blocks(weight, spec)
        out = torch.full((x.shape[0], n), torch.nan, dtype=x.dtype)
        words, scale, second = (tensors[n] for n in (stored.WORDS, stored.SCALE, stored.SECOND))
        execution = module.PackedFloatExecution(spec, n, k, 0, alone)
        execution(x, words, scale, second, bias, out)
        return out

    return run


@pytest.mark.parametrize("text", SCHEMES)
@pytest.mark.parametrize("dtype, limit", [(torch.float32, 1e-6), (torch.float16, 1e-3)])
@pytest.mark.parametrize("alone", [False, True])
def test_x_of_other_dtypes_is_multiplied_in_f32(result_of, text, dtype, limit, alone):
    scheme = parse_scheme(text)
    weight = quantize_weight(torch.randn(600, 288) * 1e-3, scheme.weight)
    x, bias = torch.randn(3, 288).to(dtype), torch.randn(600).to(dtype)
    expected = oracle.linear(scheme, weight, x.float(), bias.float())
    found = result_of(text, weight, x, bias, alone)
    assert (found - expected).norm() / expected.norm() < limit


@pytest.mark.parametrize("text", SCHEMES)
@pytest.mark.parametrize("n, k", [(320, 96), (4096, 4096), (5760, 2880), (28672, 8192)])
def test_tiles_fit_the_memory(text, n, k):
    packing = float_packing_of(parse_scheme(text).weight, k)
    for m in (1, 20, 64, 100, 200, 512, 1000):
        layer = (packing, HOPPER, n, k, rows_of_bucket(m))
        for tile in (tile_for(*layer), alone_tile(*layer)):
            assert tile is None or tile.shared_bytes(packing) * tile.resident <= 227 << 10
