"""On an NVIDIA GPU: what is measured is stored, taken, and right."""

from __future__ import annotations

import pytest
import torch

from quantdock.kernel import Problem
from quantdock.kernels import oracle
from quantdock.numerics import quantize_weight
from quantdock.schemes import parse_scheme

pytestmark = pytest.mark.device
SCHEMES = (
    "fp8_e4m3[*x*] x fp8_e4m3[*x*]:dynamic",
    "fp8_e4m3[1x*] x fp8_e4m3[1x*]:dynamic",
    "fp8_e4m3[128x128] x fp8_e4m3[1x128]:dynamic",
    "int8[1x*] x int8[1x*]:dynamic",
    "fp8_e4m3[1x*]",
)


@pytest.fixture
def tuner(cuda, tmp_path, monkeypatch):
    """Return a tuner whose table is empty."""
    from quantdock_cuda import tables
    from quantdock_cuda.tiling import ways
    from quantdock_cuda.tuning.tuner import CudaTuner

    monkeypatch.setenv("QUANTDOCK_CACHE", str(tmp_path))
    tables.measured.cache_clear()
    ways.cache_clear()
    yield CudaTuner(cuda)
    tables.measured.cache_clear()
    ways.cache_clear()


@pytest.mark.parametrize("text", SCHEMES)
def test_layers_take_what_was_measured(tuner, text, monkeypatch):
    """With two tiles to try, so that little is compiled; torch's libraries are tried, too."""
    from quantdock_cuda import tables
    from quantdock_cuda.scaled_linear import CudaScaledLinear
    from quantdock_cuda.tiling import names_of, ways
    from quantdock_cuda.tuning import candidates
    from quantdock_cuda.tuning.tuner import case_of
    from quantdock_triton.tile import parse_tile

    tiles = [parse_tile("16x64x128 stages=3 swap"), parse_tile("32x64x128 parts=2 stages=3 swap")]
    monkeypatch.setattr(candidates, "likely", lambda *arguments: tiles)
    scheme, n, k = parse_scheme(text), 640, 1024
    problem = Problem(scheme=scheme, n=n, k=k, shards=(n,), dtype="bfloat16")
    run = tuner.plan([problem], (16, 512), thorough=False, again=False)
    done = list(run.measure(lambda count: None))
    assert [case.rows for case in done] == [16, 512] and run.num_known == 0
    case = case_of(problem, 16)
    table = tables.measured(tuner.device)
    assert list(table) == [names_of(case.form, case.one_scale)[0]]
    for measured in done:
        stored = table[case.name][n, k][measured.rows]
        assert str(stored[0]) == measured.after.way and measured.after.us > 0
        taken = ways(case.form, tuner.device, n, k, measured.rows, case.one_scale)
        assert taken[: len(stored)] == stored
    assert tuner.plan([problem], (16, 512), thorough=False, again=False).num_known == 2
    weight = quantize_weight(torch.randn(n, k), scheme.weight)
    layer = CudaScaledLinear(problem)
    tensors = {name: t.cuda() for name, t in layer.prepare(weight).items()}
    for m in (16, 512):
        x = torch.randn(m, k).bfloat16()
        expected = oracle.linear(scheme, weight, x, None).float()
        found = layer.apply(tensors, x.cuda(), None).cpu().float()
        assert (found - expected).norm() < 2.0**-7 * expected.norm()
