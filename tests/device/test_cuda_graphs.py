"""On an NVIDIA GPU: CUDA graphs, torch.compile, and whole models through the plugin's kernels."""

from __future__ import annotations

import pytest
import torch
from transformers import StaticCache

import quantdock
from demo.models import TINY_LLAMA
from quantdock.kernel import Problem
from quantdock.numerics import quantize_weight
from quantdock.schemes import parse_scheme

pytestmark = [
    pytest.mark.device,
    # torch 2.11's own use of torch.jit, when it compiles.
    pytest.mark.filterwarnings("ignore:.*torch.jit.script_method:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*TensorFloat32 tensor cores.*:UserWarning"),
]
IDS = torch.arange(3, 60)[None]
SCHEMES = (
    "fp8_e4m3[1x*] x fp8_e4m3[1x*]:dynamic",
    "fp8_e4m3[*x*] x fp8_e4m3[*x*]:dynamic",
    "fp8_e4m3[128x128] x fp8_e4m3[1x128]:dynamic",
    "int8[1x*] x int8[1x*]:dynamic",
    "fp8_e4m3[128x128]",
)


def made(text, n=384, k=4096):
    from quantdock_cuda.scaled_linear import CudaScaledLinear

    scheme = parse_scheme(text)
    layer = CudaScaledLinear(Problem(scheme=scheme, n=n, k=k, shards=(n,), dtype="bfloat16"))
    return layer, layer.prepare(quantize_weight(torch.randn(n, k, device="cuda"), scheme.weight))


@pytest.mark.parametrize("text", SCHEMES)
def test_capture_after_warmup(cuda, text):
    layer, tensors = made(text)
    layer.warmup((1, 40, 300))
    for m in (1, 40, 300):
        x = torch.randn(m, 4096, device="cuda", dtype=torch.bfloat16)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            found = layer.apply(tensors, x, None)
        for _ in range(3):
            x.normal_()
            graph.replay()
            assert torch.equal(found, layer.apply(tensors, x, None))


@pytest.mark.parametrize("text", SCHEMES)
def test_compiles_to_one_graph(cuda, text):
    layer, tensors = made(text)
    run = torch.compile(
        lambda x: layer.apply(tensors, x * 2, None) + 1, fullgraph=True, dynamic=True
    )
    for m in (1, 33):
        x = torch.randn(m, 4096, device="cuda", dtype=torch.bfloat16)
        assert torch.equal(run(x), layer.apply(tensors, x * 2, None) + 1)


@pytest.mark.parametrize("method", ["fp8_per_tensor", "fp8_per_channel", "fp8_per_block", "mxfp8"])
def test_a_model_runs_without_the_reference(cuda, method):
    model = quantdock.load(TINY_LLAMA, quantization=method, device="cuda", dtype="bfloat16")
    kernels = {layer.kernel for layer in model.quantdock_plan.layers if layer.kernel}
    assert kernels == {"cuda_fp8"}
    plain = quantdock.load(
        TINY_LLAMA, quantization=method, device="cuda", dtype="float32", require="reference"
    )
    with torch.no_grad():
        found = model(input_ids=IDS.cuda()).logits.float()
        expected = plain(input_ids=IDS.cuda()).logits.float()
    assert (found - expected).norm() / expected.norm() < 0.05
    out = model.generate(input_ids=IDS[:, :4].cuda(), max_new_tokens=6, do_sample=False)
    assert 4 < out.shape[1] <= 10


@pytest.mark.parametrize("merge", [False, True])
@pytest.mark.parametrize("method", ["fp8_per_channel", "fp8_per_block"])
@torch.no_grad()
def test_a_step_of_decoding_is_captured(cuda, method, merge):
    model = quantdock.load(
        TINY_LLAMA, quantization=method, device="cuda", dtype="bfloat16", merge=merge
    )
    cache = StaticCache(config=model.config, max_cache_len=64)
    token = torch.zeros((1, 1), dtype=torch.long, device="cuda")

    def append(ids):
        out = model(input_ids=ids, past_key_values=cache, use_cache=True)
        token.copy_(out.logits[:, -1].argmax(-1, keepdim=True))

    def continued(step):
        cache.reset()
        append(IDS[:, :8].cuda())
        found = [token.item()]
        for _ in range(12):
            step()
            found.append(token.item())
        return found

    expected = continued(lambda: append(token))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        append(token)
    assert continued(graph.replay) == expected
