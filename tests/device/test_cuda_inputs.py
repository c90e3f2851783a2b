"""On an NVIDIA GPU: gates and norms that write codes, and layers that take them."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from quantdock.formats import parse_spec
from quantdock.functional import (
    InputFormat,
    quantize_input,
    rms_norm_quantize,
    silu_mul_quantize,
)
from quantdock.kernel import Problem
from quantdock.kernels.plain_input import rms_norm
from quantdock.numerics import quantize, quantize_weight
from quantdock.schemes import parse_scheme

pytestmark = pytest.mark.device
SPECS = (
    "fp8_e4m3[1x*]:dynamic",
    "fp8_e4m3[1x128]:dynamic",
    "fp8_e4m3[1x128]:e8m0:ceil:dynamic",
    "fp8_e4m3[1x96]:dynamic",
    "fp8_e4m3[*x*]:dynamic",
    "fp8_e4m3[*x*]",
    "int8[1x*]:dynamic",
)
LAYERS = (
    "fp8_e4m3[1x*] x fp8_e4m3[1x*]:dynamic",
    "fp8_e4m3[128x128] x fp8_e4m3[1x128]:dynamic",
    "fp8_e4m3[*x*] x fp8_e4m3[*x*]",
    "fp8_e4m3[*x*] x fp8_e4m3[*x*]:dynamic",
    "int8[1x*] x int8[1x*]:dynamic",
)
SHAPES = ((1, 7168), (3, 1000), (19, 6700), (261, 5008), (17, 18432))
DTYPES = {torch.bfloat16: SHAPES, torch.float16: SHAPES[1:3], torch.float32: SHAPES[2:]}
MOST_OFF = 1e-3  # share of codes that may be neighbours, as the last bit of f32 may differ
EPS = 1e-6


def format_of(text, k):
    from quantdock_cuda.quantized_input import CudaInput

    spec = parse_spec(text)
    scale = None if spec.dynamic else torch.tensor([0.02, 0.03], device="cuda")
    problem = Problem(scheme=parse_scheme(f"{spec.element}[1x*] x {text}"), k=k)
    return InputFormat(spec=spec, k=k, scale=scale, kernel=CudaInput(problem))


def assert_near(found, value, to):
    static = None if to.scale is None else to.scale.amax()
    wanted = quantize(value, to.spec, scale=static)
    m = value.shape[0]
    off = found.codes[:m].view(torch.uint8) != wanted.codes.view(torch.uint8)
    assert off.float().mean() <= MOST_OFF
    scale = found.scale if to.spec.granularity == "tensor" else found.scale[:m]
    torch.testing.assert_close(scale, wanted.scale, rtol=2.0**-7, atol=0.0)


@pytest.mark.parametrize("dtype", list(DTYPES), ids=str)
@pytest.mark.parametrize("text", SPECS)
def test_gates_and_norms(cuda, text, dtype):
    for m, k in DTYPES[dtype]:
        to = format_of(text, k)
        x = (3 * torch.randn(m, 2 * k, device="cuda")).to(dtype)
        gate, up = x.chunk(2, dim=-1)
        assert_near(silu_mul_quantize(x, to), F.silu(gate) * up, to)
        weight, residual = torch.randn(k, device="cuda").to(dtype), torch.randn_like(up)
        for added in (None, residual):
            made, total = rms_norm_quantize(gate, weight, EPS, to, added)
            assert torch.equal(total, gate if added is None else gate + added)
            assert_near(made, rms_norm(total, weight, EPS), to)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("text", SPECS[:4])
def test_many_wide_rows_have_the_codes_of_few(cuda, text, dtype):
    """Their weight is read late: where the mean is known, which may be NaN."""
    few = 700
    for m, k in ((4096, 8192), (2048, 16384), (1900, 18432)):
        to = format_of(text, k)
        x, weight = torch.randn(m, k, device="cuda").to(dtype), torch.randn(k, device="cuda")
        x[-3, 5], x[-2, 3], x[-1] = torch.nan, torch.inf, 0.0
        made, _ = rms_norm_quantize(x, weight.to(dtype), EPS, to, None)
        wanted, _ = rms_norm_quantize(x[-few:], weight.to(dtype), EPS, to, None)
        found = made.codes[m - few : m].view(torch.uint8)
        assert torch.equal(found, wanted.codes[:few].view(torch.uint8))
        same = {"rtol": 0.0, "atol": 0.0, "equal_nan": True}
        torch.testing.assert_close(made.scale[m - few : m], wanted.scale[:few], **same)


@pytest.mark.parametrize("text", LAYERS)
def test_layers_take_the_codes(cuda, text):
    from quantdock_cuda.fused_matmul import MOST_ROWS
    from quantdock_cuda.quantized_input import CudaInput
    from quantdock_cuda.scaled_linear import CudaScaledLinear

    n, k = 320, 512
    problem = Problem(scheme=parse_scheme(text), n=n, k=k, shards=(n,), dtype="bfloat16")
    kernel = CudaScaledLinear(problem)
    weight = quantize_weight(torch.randn(n, k), problem.scheme.weight)
    if problem.scheme.is_static:
        weight = replace(weight, input_scale=torch.tensor([0.02]))
    tensors = {name: t.cuda() for name, t in kernel.prepare(weight).items()}
    spec = problem.scheme.activation
    scale = tensors.get("input_scale")
    to = InputFormat(spec=spec, k=k, scale=scale, kernel=CudaInput(problem))
    for m in (1, 3, 64, 130, 600):
        x = torch.randn(m, k, device="cuda", dtype=torch.bfloat16)
        wanted, made = kernel.apply(tensors, x, None), quantize_input(x, to)
        found = kernel.apply_quantized(tensors, made, None)
        if m > MOST_ROWS:
            assert torch.equal(found, wanted)
        else:  # x may be quantized where it is multiplied, which adds up in another order
            assert (found - wanted).float().norm() / wanted.float().norm() < 2.0**-7
            wanted = found
        rows = 1 if made.scale.numel() == 1 else m
        foreign = replace(made, codes=made.codes[:m], scale=made.scale[:rows].contiguous())
        assert torch.equal(kernel.apply_quantized(tensors, foreign, None), wanted)


def test_recorded_and_captured_calls(cuda):
    to = format_of(SPECS[1], 1024)
    x, weight = torch.randn(9, 2048, device="cuda", dtype=torch.bfloat16), torch.ones(1024).cuda()

    def both(x):
        made, total = rms_norm_quantize(x[:, :1024], weight, EPS, to, x[:, 1024:])
        return silu_mul_quantize(x, to).codes, made.codes, made.scale, total

    wanted = both(x)
    with torch.no_grad():
        found = torch.compile(both, fullgraph=True, backend="eager")(x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = both(x)
    graph.replay()
    for results in (found, captured):
        for one, other in zip(results, wanted, strict=True):
            ones, others = (each[:9].contiguous().view(torch.uint8) for each in (one, other))
            assert torch.equal(ones, others)
