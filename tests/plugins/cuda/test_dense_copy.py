"""Kernels that keep a 16-bit copy of the weight: who gets them, and which one computes."""

from __future__ import annotations

from copy import deepcopy

import pytest
import torch

import quantdock
import toy_llama
from integer_weights import make_integers
from quantdock import Policy, dispatch_for
from quantdock.kernel import Problem
from quantdock.numerics import quantize_weight
from quantdock.schemes import parse_scheme
from quantdock.testing import use_plugins

CASES = {
    "int4[1x64]": "cuda_w4a16",
    "uint4[1x32]:zero:act-order": "cuda_w4a16",
    "int4[1x64] + input multiplier": "cuda_w4a16",
    "fp8_e4m3[64x64]": "cuda_w8a16",
}


@pytest.mark.parametrize("text, usual", CASES.items())
def test_it_is_taken_where_it_is_asked_for(text, usual):
    problem = Problem(scheme=parse_scheme(text), n=128, k=256, dtype="bfloat16")
    with use_plugins("quantdock_cuda.plugin"):
        assert dispatch_for("cuda:sm_90").select(problem).kernel.name == usual
        policy = Policy(prefer=f"{usual}_copy")
        chosen = dispatch_for("cuda:sm_90", policy).select(problem)
    assert chosen.kernel.name == f"{usual}_copy"
    assert chosen.kernel.keeps_copy and "16-bit copy" in chosen.kernel.note


@pytest.mark.parametrize("text", CASES)
def test_few_rows_read_codes_and_many_the_copy(text):
    from quantdock_cuda import dense_copy

    scheme = parse_scheme(text)
    is_float = scheme.weight.element == "fp8_e4m3"
    kind = dense_copy.CopiedScaledLinear if is_float else dense_copy.CopiedPackedLinear
    weight = (
        quantize_weight(torch.randn(128, 256), scheme.weight)
        if is_float
        else make_integers(text, [128], 256)
    )
    layer = kind(Problem(scheme=scheme, n=128, k=256, shards=(128,), dtype="bfloat16"))
    tensors = layer.prepare(weight)
    assert tensors["weight_copy"].dtype == torch.bfloat16
    restored = layer.restore(tensors)
    assert torch.equal(restored.dequantize(), weight.dequantize())
    assert torch.equal(deepcopy(layer).restore(tensors).dequantize(), weight.dequantize())
    x, bias = torch.randn(65, 256).to(torch.bfloat16), torch.randn(128).to(torch.bfloat16)
    expected = x.float() @ weight.dense().T + bias.float()
    for rows in (0, 3, 64, 65):
        found = layer.apply(tensors, x[:rows], bias)
        assert found.shape == (rows, 128) and found.dtype == torch.bfloat16
        assert (found.float() - expected[:rows]).norm() <= 2.0**-7 * expected.norm()
    tensors["weight_copy"].zero_()
    assert torch.equal(layer.apply(tensors, x, None), torch.zeros(65, 128, dtype=torch.bfloat16))
    assert layer.apply(tensors, x[:64], None).any()
    assert layer.apply(tensors, x.float(), None).any()  # the copy is of another dtype


def test_plans_count_the_copy(tmp_path):
    toy_llama.write(tmp_path, toy_llama.llama())
    with use_plugins("quantdock_cuda.plugin"):
        plain, copied = (
            quantdock.explain(
                tmp_path,
                quantization="int8_per_channel_weight_only",
                platform="cuda:sm_90",
                policy=policy,
            )
            for policy in (Policy(), Policy(prefer="cuda_w4a16_copy"))
        )
    before = {p.prefix: p for p in plain.layers if p.scheme}
    after = {p.prefix: p for p in copied.layers if p.scheme}
    assert {p.kernel for p in after.values()} == {"cuda_w4a16_copy"}
    for name, plan in after.items():
        assert plan.bytes_memory == before[name].bytes_memory + 2 * plan.n * plan.k
