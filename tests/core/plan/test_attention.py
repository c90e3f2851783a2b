"""Attention layers in a plan: found by name, decided, sized, warned of, shown."""

from __future__ import annotations

import io

import pytest
import torch
from rich.console import Console

import quantdock
from quantdock import Plan
from quantdock.checkpoint.model_facts import kv_shape
from quantdock.plan.attention import attention_prefixes
from quantdock.plan.render import render
from toy_llama import BLOCK, LAYER, TEXT_CONFIG, llama, write

ATTENTION = f"{LAYER}.self_attn"


def test_attention_is_what_lies_around_the_keys():
    layers = [
        "model.layers.0.self_attn.q_proj",
        "model.layers.0.self_attn.k_proj",
        "model.layers.0.mlp.up_proj",
        "transformer.layers.1.attn.Wqkv",
        "model.visual.layers.0.attn.qkv",
        "model.embed.k_proj",
    ]
    assert attention_prefixes(layers) == ["model.layers.0.self_attn", "transformer.layers.1.attn"]


@pytest.mark.parametrize(
    ("config", "shape"),
    [
        (TEXT_CONFIG, (2, 128)),
        ({"text_config": TEXT_CONFIG}, (2, 128)),
        ({"hidden_size": 64, "num_attention_heads": 4}, (4, 32)),
        ({"n_embd": 64, "n_head": 4}, (4, 32)),
        (
            {"num_attention_heads": 4, "kv_lora_rank": 16, "qk_nope_head_dim": 8}
            | {"qk_rope_head_dim": 4, "v_head_dim": 8},
            (4, 20),
        ),
        ({"model_type": "mamba"}, None),
        ({"num_attention_heads": 4, "kv_lora_rank": 16, "v_head_dim": 8}, None),
        ({"num_attention_heads": 4}, None),
    ],
)
def test_the_shape_of_a_token(config, shape):
    assert kv_shape(config) == shape


@pytest.fixture
def folder(tmp_path):
    scales = {f"{ATTENTION}.{name}": torch.tensor(0.5) for name in ("k_scale", "v_scale")}
    return write(tmp_path, llama("128x128") | scales, BLOCK)


def test_a_plan_from_headers_shows_decision_and_bytes(folder):
    plan = quantdock.explain(folder, platform="cpu")
    (layer,) = plan.attention
    assert (layer.prefix, layer.kind, layer.decision) == (ATTENTION, "attention", "quantized")
    assert (layer.scheme, layer.kernel) == ("fp8_e4m3[tensor]", "kv_cache")
    assert layer.bytes_per_token == plan.kv_bytes_per_token == 2 * 2 * 64
    assert layer.because == "the checkpoint stores scales of keys and values"
    assert "KV cache in fp8_e4m3[tensor]" in plan.summary()
    assert Plan.from_json(plan.to_json()) == plan
    assert not [note for note in plan.notes if "KV cache" in note]


def test_the_users_word_changes_it(folder):
    plain = quantdock.explain(folder, platform="cpu", kv_cache="none")
    (layer,) = plain.attention
    assert (layer.decision, layer.scheme, layer.bytes_per_token) == ("unquantized", None, 512)
    assert "although the checkpoint stores scales" in layer.because
    assert any("2 scales of the KV cache" in note for note in plain.notes)
    token = quantdock.explain(folder, platform="cpu", kv_cache="int8")
    assert token.attention[0].bytes_per_token == 2 * 2 * (64 + 4)
    assert any("it is kept as int8[token]:dynamic" in note for note in token.notes)


def test_the_rules_of_a_bare_config_have_it_too():
    block = {"quant_method": "fp8", "kv_cache_quant_algo": "FP8"}
    plan = quantdock.explain({**TEXT_CONFIG, "quantization_config": block}, platform="cpu")
    (layer,) = [layer for layer in plan.rules if layer.kind == "attention"]
    assert (layer.scheme, layer.bytes_per_token) == ("fp8_e4m3[tensor]", 256)
    assert layer.source == "kv_cache_quant_algo"


def test_missing_scales_are_warned_of(tmp_path):
    block = {**BLOCK, "kv_cache_scheme": "FP8"}
    plan = quantdock.explain(write(tmp_path, llama("128x128"), block), platform="cpu")
    (warning,) = [w for w in plan.warnings if ATTENTION in w]
    assert warning == (
        f"1 layer ({ATTENTION}): the checkpoint asks for keys and values in fp8 "
        "(kv_cache_scheme), but stores no scales for them: 1.0 is used, which may cost accuracy"
    )


def test_people_read_it(folder):
    console = Console(record=True, width=100, file=io.StringIO())
    render(quantdock.explain(folder, platform="cpu"), console)
    text = console.export_text()
    assert "KV cache  fp8_e4m3[tensor]" in text
    assert "256 B a token in 1 layers" in text
