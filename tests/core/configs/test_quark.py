"""quark: which entry a layer's encoding comes from, lists, the KV cache."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from quantdock.configs.quark import QuarkConfig
from quantdock.errors import ConfigError, MethodNotYetError
from quantdock.schemes import LayerFacts, StoredTensor

INT8 = {"dtype": "int8", "qscheme": "per_tensor", "symmetric": True}
INT4 = {"dtype": "int4", "qscheme": "per_group", "group_size": 32, "symmetric": True}
FP8 = {"dtype": "fp8_e4m3", "qscheme": "per_tensor", "symmetric": True}
UP = "model.layers.0.mlp.up_proj"


def config(**fields: Any) -> QuarkConfig:
    block = {"global_quant_config": {"weight": INT8, "input_tensors": INT8}, "exclude": ["lm_head"]}
    return QuarkConfig.from_config({**block, **fields})


def scheme(made: QuarkConfig, prefix: str, **facts: Any) -> str:
    return str(made.scheme_for(LayerFacts(prefix=prefix, **facts)).scheme)


def test_names_come_before_classes_before_all_layers() -> None:
    made = config(
        layer_quant_config={"*.down_proj": {"weight": INT4}, UP: {"weight": FP8}},
        layer_type_quant_config={"Linear": {"weight": {**INT8, "qscheme": "per_channel"}}},
    )
    assert scheme(made, UP) == "fp8_e4m3[*x*]"
    assert scheme(made, "model.layers.7.mlp.down_proj") == "int4[1x32]"
    assert scheme(made, "model.layers.7.mlp.gate_proj") == "int8[1x*]"
    assert scheme(made, "x", class_names=("Conv1D",)) == "int8[*x*] x int8[*x*]"
    assert scheme(made, "x.experts.0.w1", kind="experts", class_names=("Experts",)) == "int8[1x*]"


def test_exclusion_comes_first() -> None:
    made = config(exclude=["lm_head", "*.down_proj"], layer_quant_config={"*": {"weight": INT4}})
    decision = made.scheme_for(LayerFacts(prefix="model.layers.0.mlp.down_proj"))
    assert (decision.kind, decision.source) == ("unquantized", "exclude[1] = '*.down_proj'")
    assert made.scheme_for(LayerFacts(prefix="lm_head", kind="head")).kind == "unquantized"


def test_a_layer_without_weights_in_its_entry_stays_plain() -> None:
    made = config(layer_quant_config={"*.router": {"weight": None}})
    decision = made.scheme_for(LayerFacts(prefix="model.layers.0.mlp.router"))
    assert (decision.kind, decision.source) == ("unquantized", "layer_quant_config['*.router']")


def test_an_embedding_is_quantized_only_where_an_entry_names_it() -> None:
    embedding = {"kind": "embedding", "class_names": ("Embedding",)}
    assert scheme(config(), "model.embed_tokens", **embedding) == "None"
    made = config(layer_type_quant_config={"Embedding": {"weight": INT4}})
    assert scheme(made, "model.embed_tokens", **embedding) == "int4[1x32]"


def test_shards_that_are_encoded_differently_are_refused() -> None:
    made = config(layer_quant_config={"*.k_proj": {"weight": INT4}})
    decision = made.scheme_for(LayerFacts(prefix="model.layers.0.self_attn.qkv_proj"))
    assert decision.error and "the shards of model.layers.0.self_attn.qkv_proj disagree" in str(
        decision.because
    )


def test_each_layer_is_read_by_its_own_encoding() -> None:
    made = config(layer_quant_config={"*.down_proj": {"weight": INT4}, "*.o_proj": {"weight": FP8}})
    stored = {
        "weight": StoredTensor(dtype="int32", shape=(256, 16)),
        "weight_scale": StoredTensor(dtype="bfloat16", shape=(8, 128)),
    }
    facts = LayerFacts(prefix="model.layers.0.mlp.down_proj", stored=stored)
    found = made.scheme_for(facts).scheme
    assert found is not None and made.weight_shape(found, facts) == (128, 256)
    shapes = {slot.name: slot.shape for slot in made.slots(found, 128, 256, facts)}
    assert shapes == {"weight": (256, 16), "weight_scale": (8, 128)}


def test_stored_tensors_decide_against_lists() -> None:
    made = config()
    plain = {"weight": StoredTensor(dtype="bfloat16", shape=(64, 64))}
    assert made.scheme_for(LayerFacts(prefix=UP, stored=plain)).kind == "unquantized"
    stored = {
        "weight": StoredTensor(dtype="int8", shape=(64, 64)),
        "weight_scale": StoredTensor(dtype="float32", shape=()),
        "input_scale": StoredTensor(dtype="float32", shape=()),
    }
    head = LayerFacts(prefix="lm_head", kind="head", stored=stored)
    assert made.scheme_for(head).kind == "quantized"
    assert made.notes() == (
        "model.layers.*.mlp.up_proj is stored as bfloat16, though no entry leaves it out; "
        "the stored tensors decide",
        "lm_head is stored with weight, though exclude[0] = 'lm_head' leaves it out; "
        "the stored tensors decide",
    )


CACHE = {"output_tensors": FP8, "weight": INT8, "input_tensors": INT8}


@pytest.mark.parametrize(
    "fields",
    [
        {"kv_cache_quant_config": {"*k_proj": CACHE, "*v_proj": CACHE}},
        {
            "layer_quant_config": {"*k_proj": CACHE, "*v_proj": CACHE},
            "export": {"kv_cache_group": ["*k_proj", "*v_proj"]},
        },
    ],
)
def test_the_kv_cache_is_the_output_of_the_layers_that_make_it(fields: Any) -> None:
    made = config(**fields)
    assert str(made.kv_cache_spec()) == "fp8_e4m3[tensor]"
    assert scheme(made, "model.layers.0.self_attn.k_proj") == "int8[*x*] x int8[*x*]"
    assert config().kv_cache_spec() is None


def test_a_cache_of_another_kind_is_told_and_not_kept() -> None:
    tokens = {"output_tensors": {**FP8, "qscheme": "per_token", "is_dynamic": True}}
    made = config(kv_cache_quant_config={"*k_proj": tokens})
    assert made.kv_cache_spec() is None
    assert "in fp8_e4m3 per_token dynamic" in made.kv_cache.because
    with pytest.raises(MethodNotYetError, match="keeps keys and values differently"):
        config(kv_cache_quant_config={"*k_proj": tokens, "*v_proj": {"output_tensors": FP8}})


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"softmax_quant_spec": FP8}, "softmax_quant_spec is set"),
        ({"global_quant_config": {}}, "quantizes no weights"),
        ({"global_quant_config": None}, "quantizes no weights"),
        ({"layer_quant_config": {"a": {"weight": {**INT4, "dtype": "mx6"}}}}, "is mx6 per_group"),
    ],
)
def test_kinds_to_come_are_named(fields: Any, text: str) -> None:
    with pytest.raises(MethodNotYetError) as caught:
        config(**fields)
    assert text in str(caught.value)


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"layer_quant_config": {"a": 4}}, "layer_quant_config['a'] is 4, which is no object"),
        (
            {"layer_quant_config": {"a": {"weight": {**INT4, "dtype": "fp3"}}}},
            "dtype is 'fp3', whi",
        ),
        ({"export": {"pack_method": "shuffle"}}, "quark: export: pack_method is 'shuffle'"),
        ({"export": {"weight_format": "fake_quantized"}}, "weight_format is 'fake_quantized'"),
        ({"layer_quant_config": ["a"]}, "quark: layer_quant_config is ['a']"),
        ({"exclude": "lm_head"}, "exclude is 'lm_head'"),
        ({"export": {"kv_cache_group": 3}}, "quark: export: kv_cache_group is 3"),
        ({"kv_cache_quant_config": {"a": 1}}, "kv_cache_quant_config['a'] is 1, which is no obj"),
    ],
)
def test_impossible_fields_name_themselves(fields: Any, text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        config(**fields)
    assert text in str(caught.value)


def test_published_configs_decide_rightly(shared: Path) -> None:
    rows = json.loads((shared / "cases" / "real-configs.json").read_text())
    found, made = {}, None
    for row in rows:
        block = row["config"].get("quantization_config") or {}
        if block.get("quant_method") == "quark":
            made = QuarkConfig.from_config(block)
            found[row["model"]] = scheme(made, UP)
    mxfp4 = "fp4_e2m1[1x32]:e8m0:even x fp4_e2m1[1x32]:e8m0:even:dynamic"
    assert found == {
        "Quark MXFP4 w4a4 export (exporter script)": mxfp4,
        "Kimi-K2.5 Quark int4-fp8 (W4A8)": "int4[1x*]:second[*x*] x fp8_e4m3[*x*]:dynamic",
        "amd/GLM-5.3-Flash-Quark-MXFP4": mxfp4,
    }
    assert made is not None  # the last one: one of its layers is in fp8
    assert scheme(made, "model.layers.7.self_attn.q_a_proj") == "fp8_e4m3[128x128]"
