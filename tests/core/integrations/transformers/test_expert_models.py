"""Mixtures of every architecture, quantized at load: shared experts, many experts, memory."""

from __future__ import annotations

import pytest
import torch

import quantdock
from model_outputs import IDS, logits
from quantdock.layers import FusedMoE, LinearBase

SMALL = {"hidden_size": 128, "head_dim": 32, "num_experts_per_tok": 2}
MODELS = {
    "mixtral": {"num_local_experts": 4, "intermediate_size": 192},
    "qwen3_moe": {"num_experts": 4, "moe_intermediate_size": 96},
    "qwen2_moe": {
        "num_experts": 4,
        "moe_intermediate_size": 96,
        "shared_expert_intermediate_size": 160,
    },
    "deepseek_v3": {
        "n_routed_experts": 8,
        "n_shared_experts": 1,
        "moe_intermediate_size": 96,
        "first_k_dense_replace": 1,
        "n_group": 2,
        "topk_group": 1,
        "q_lora_rank": 64,
        "kv_lora_rank": 32,
        "qk_nope_head_dim": 16,
        "qk_rope_head_dim": 16,
        "head_dim": 16,
        "v_head_dim": 32,
        "num_key_value_heads": 4,
    },
}


@pytest.mark.parametrize("model_type", MODELS)
@pytest.mark.parametrize("method", ["fp8_per_channel", "mxfp4_online", "nvfp4_online"])
def test_routed_and_shared_experts_are_quantized_at_load(make_toy, model_type, method):
    folder = make_toy(model_type, torch.float32, **{**SMALL, **MODELS[model_type]})
    plain = quantdock.load(folder, "none", device="cpu")
    model = quantdock.load(folder, method, device="cpu")
    experts = [name for name, m in model.named_modules() if isinstance(m, FusedMoE)]
    assert len(experts) == (1 if model_type == "deepseek_v3" else 2)
    shared = [m for name, m in model.named_modules() if "shared_expert" in name and m._parameters]
    quantized = [m for m in shared if isinstance(m, LinearBase)]
    assert bool(quantized) is (model_type in ("qwen2_moe", "deepseek_v3"))
    for name in experts:
        layer, own = model.get_submodule(name), plain.get_submodule(name)
        for expert in range(len(layer.experts)):
            for weight, real in zip(
                layer.quant_method.restore(layer, expert),
                (own.gate_up_proj[expert], own.down_proj[expert]),
                strict=True,
            ):
                error = (weight.dequantize() - real).norm() / real.norm()
                assert error < (0.04 if method.startswith("fp8") else 0.15)
    assert model.quantdock_plan.unused == ()
    generated = model.generate(IDS, max_new_tokens=4, do_sample=False)
    assert generated.shape == (1, IDS.shape[1] + 4)


def test_a_shared_expert_may_stay_as_it_is(make_toy):
    folder = make_toy("qwen2_moe", torch.float32, **SMALL, **MODELS["qwen2_moe"])
    model = quantdock.load(folder, "fp8_per_channel", device="cpu", ignore=["*.shared_expert.*"])
    plan = {layer.prefix: layer for layer in model.quantdock_plan.layers}
    assert plan["model.layers.0.mlp.shared_expert.up_proj"].decision == "unquantized"
    assert isinstance(model.model.layers[0].mlp.experts, FusedMoE)
    assert torch.isfinite(logits(model)).all()


def test_128_experts_need_one_at_a_time(make_toy):
    """16-bit experts are never there together: what is held is quantized, and one expert more."""
    sizes = {"num_experts": 128, "moe_intermediate_size": 128}
    folder = make_toy("qwen3_moe", **{**SMALL, **sizes, "num_hidden_layers": 1})
    model = quantdock.load(folder, "mxfp4", device="cpu")
    experts = model.model.layers[0].mlp.experts
    assert len(experts.experts) == 128
    held = sum(p.numel() * p.element_size() for p in experts.parameters())
    values = 128 * 3 * 128 * 128
    assert held == values // 2 + values // 32 * 4  # packed codes, and f32 scales
    assert torch.isfinite(logits(model)).all()
