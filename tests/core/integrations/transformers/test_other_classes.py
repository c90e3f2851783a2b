"""Modules that only look like layers we replace: convolutions, grouped products, positions."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

import quantdock
from model_outputs import logits
from quantdock.integrations.transformers.linear_class import computes_otherwise
from quantdock.layers import FusedMoE, LinearBase
from tests.toy_files import edit_config, edit_tensors
from toy_fp4 import fp8_blocks

QWEN3_NEXT = {
    "hidden_size": 128,
    "head_dim": 32,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 96,
    "shared_expert_intermediate_size": 96,
    "layer_types": ["linear_attention", "full_attention"],
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 32,
    "linear_value_head_dim": 32,
}
DEEPSEEK_V4 = {
    "hidden_size": 128,
    "head_dim": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 1,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 64,
    "q_lora_rank": 64,
    "qk_rope_head_dim": 16,
    "o_groups": 2,
    "o_lora_rank": 32,
    "index_n_heads": 2,
    "index_head_dim": 32,
    "index_topk": 16,
}


class Plain(nn.Linear):
    """A product in other words."""

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight.T if self.bias is None else x @ self.weight.T + self.bias


class Router(nn.Linear):
    """A product, and more."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return super().forward(x).topk(2)


class Grouped(nn.Linear):
    """A product for each of two groups."""

    def forward(self, x: Tensor) -> Tensor:
        weight = self.weight.view(2, -1, x.shape[-1])
        return torch.einsum("tgk,gnk->tgn", x, weight)


@pytest.mark.parametrize("bias", [True, False])
def test_a_class_is_known_by_what_it_computes(bias):
    with torch.device("meta"):
        made = {cls: cls(8, 6, bias=bias) for cls in (nn.Linear, Plain, Router, Grouped)}
    assert [cls for cls, module in made.items() if computes_otherwise(module)] == [Router, Grouped]


@pytest.mark.parametrize("method", ["fp8_per_channel", "mxfp4"])
def test_a_convolution_holds_no_experts(make_toy, method):
    folder = make_toy("qwen3_next", torch.float32, **QWEN3_NEXT)
    model = quantdock.load(folder, method, device="cpu")
    assert sum(isinstance(m, FusedMoE) for m in model.modules()) == 2
    convolution = model.model.layers[0].linear_attn.conv1d
    assert type(convolution) is nn.Conv1d
    stored = load_file(folder / "model.safetensors")["model.layers.0.linear_attn.conv1d.weight"]
    assert torch.equal(convolution.weight, stored)
    assert torch.isfinite(logits(model)).all()


def test_a_grouped_product_keeps_its_weight(make_toy):
    folder = make_toy("deepseek_v4", torch.float32, **DEEPSEEK_V4)
    plain = logits(quantdock.load(folder, "none", device="cpu"))
    model = quantdock.load(folder, "fp8_per_channel", device="cpu")
    attention = model.model.layers[0].self_attn
    assert isinstance(attention.o_b_proj, LinearBase)
    assert not isinstance(attention.o_a_proj, LinearBase)
    own = {layer.prefix: layer for layer in model.quantdock_plan.layers}
    [said] = {layer.because for name, layer in own.items() if name.endswith(("o_a_proj", "wo_a"))}
    assert said == "DeepseekV4GroupedLinear computes something else than x @ W^T with its weight"
    assert (logits(model) - plain).norm() / plain.norm() < 0.2
    quantdock.reload(model, folder)


def test_a_weight_that_a_class_multiplies_by_itself_is_kept(make_toy):
    fields = {"hidden_size": 64, "state_size": 8, "num_hidden_layers": 1, "time_step_rank": 32}
    folder = make_toy("mamba", torch.float32, **fields)
    plain = logits(quantdock.load(folder, "none", device="cpu"))
    model = quantdock.load(folder, "fp8_per_channel", device="cpu")
    mixer = model.backbone.layers[0].mixer
    assert isinstance(mixer.x_proj, LinearBase) and type(mixer.dt_proj) is nn.Linear
    said = "MambaMixer multiplies by its weight without calling it"
    for plan in (model.quantdock_plan, quantdock.explain(folder, "cpu", "fp8_per_channel")):
        own = {layer.prefix.rpartition(".")[2]: layer for layer in plan.layers}
        assert own["dt_proj"].because == said and own["x_proj"].decision == "quantized"
    assert (logits(model) - plain).norm() / plain.norm() < 0.2


def test_a_grouped_product_that_is_stored_in_codes_is_decoded(make_toy):
    folder = make_toy("deepseek_v4", **DEEPSEEK_V4)
    expected = {}

    def encode(tensors: dict[str, Tensor]) -> None:
        for name in [n for n in tensors if n.endswith(("wo_a.weight", "wo_b.weight"))]:
            codes, value = fp8_blocks(tensors.pop(name))
            expected.update({name: value} if "wo_a" in name else {})
            stem = name.rpartition(".")[0]
            tensors.update({f"{stem}.{part}": tensor for part, tensor in codes.items()})

    edit_tensors(folder, encode)
    edit_config(
        folder,
        quantization_config={
            "quant_method": "fp8",
            "activation_scheme": "dynamic",
            "weight_block_size": [128, 128],
        },
    )
    model = quantdock.load(folder, device="cpu")
    weights = [layer.self_attn.o_a_proj.weight for layer in model.model.layers]
    assert len(weights) == len(expected)
    for weight, value in zip(weights, expected.values(), strict=True):
        assert torch.equal(weight, value.to(weight.dtype))
    assert model.quantdock_plan.unused == ()
    assert torch.isfinite(logits(model)).all()
    quantdock.reload(model, folder)


@pytest.mark.parametrize(("ignore", "count"), [((), 1), (("*.experts*",), 0)])
def test_experts_of_a_class_that_is_not_known_are_told(make_toy, ignore, count):
    fields = {"num_local_experts": 2, "interleave_moe_layer_step": 1, "intermediate_size_mlp": 64}
    folder = make_toy("llama4_text", **fields, hidden_size=128, head_dim=32, intermediate_size=64)
    plan = quantdock.load(folder, "fp8_per_channel", device="cpu", ignore=ignore).quantdock_plan
    expected = (
        "model.layers.{0-1}.feed_forward.experts stay in bfloat16: experts of class "
        "Llama4TextExperts have no form that is known"
    )
    assert [text for text in plan.warnings if "Llama4TextExperts" in text] == [expected] * count
