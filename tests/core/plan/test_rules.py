"""Rules: one layer of each kind, from the middle of the model."""

from __future__ import annotations

from quantdock.plan.rules import plan_rules
from quantdock.plan.setting import Setting, choose_dtype
from quantdock.platform import Platform


def test_each_kind_is_asked_by_a_usual_name(config, make_dispatch):
    setting = Setting(config=config, dispatch=make_dispatch(), dtype="bfloat16")
    model = {"num_hidden_layers": 61, "n_routed_experts": 256, "vision_config": {}}
    rules = plan_rules(model, setting)
    assert [(rule.prefix, rule.kind, rule.decision) for rule in rules] == [
        ("model.embed_tokens", "embedding", "unquantized"),
        ("model.layers.30.self_attn", "attention", "unquantized"),
        ("model.layers.30.self_attn.o_proj", "linear", "quantized"),
        ("model.layers.30.mlp.experts.0.down_proj", "experts", "quantized"),
        ("model.layers.30.mlp.down_proj", "linear", "quantized"),
        ("model.visual.blocks.0.attn.qkv", "linear", "quantized"),
        ("lm_head", "head", "unquantized"),
    ]
    assert [rule.kernel for rule in rules if rule.kind == "linear"] == ["fast"] * 3


def test_a_dense_text_model_has_neither_experts_nor_a_tower(config, make_dispatch):
    setting = Setting(config=config, dispatch=make_dispatch(), dtype="bfloat16")
    assert len(plan_rules({}, setting)) == 5


def test_the_dtype_is_the_files_where_the_device_has_it():
    device = Platform(name="toy", arch="t", device="cpu", dtypes=("bfloat16", "float32"))
    assert choose_dtype({"dtype": "float32"}, device) == "float32"
    assert choose_dtype({"torch_dtype": "float16"}, device) == "bfloat16"
    assert choose_dtype({}, device) == "bfloat16"
