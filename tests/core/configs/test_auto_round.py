"""auto-round: overrides by name and expression, the blocks that are quantized, lists."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from quantdock.configs.auto_round import AutoRoundConfig
from quantdock.errors import ConfigError, MethodNotYetError
from quantdock.schemes import LayerFacts, StoredTensor

UP = "model.layers.0.mlp.up_proj"
DOWN = "model.layers.0.mlp.down_proj"


def config(**fields: Any) -> AutoRoundConfig:
    block = {"bits": 4, "group_size": 32, "sym": True, "packing_format": "auto_round:auto_gptq"}
    return AutoRoundConfig.from_config({**block, **fields})


def decide(made: AutoRoundConfig, prefix: str, **facts: Any) -> Any:
    return made.scheme_for(LayerFacts(prefix=prefix, **facts))


def scheme(made: AutoRoundConfig, prefix: str, **facts: Any) -> str:
    return str(decide(made, prefix, **facts).scheme)


def test_names_come_before_expressions() -> None:
    made = config(
        extra_config={
            r".*\.mlp\..*": {"bits": 8},
            UP: {"bits": 2, "group_size": 64},
            r".*\.gate": {"bits": 16, "data_type": "float"},
            "model.layers.1.mlp.up_proj": {},
        }
    )
    assert scheme(made, UP) == "int2[1x64]"
    assert scheme(made, DOWN) == "int8[1x32]"
    assert scheme(made, "model.layers.1.mlp.up_proj") == "int8[1x32]"
    assert decide(made, DOWN).source == (
        r"extra_config['.*\\.mlp\\..*']: bits = 8, group_size = 32, sym = True, "
        "packing_format = 'auto_round:auto_gptq'"
    )
    assert scheme(made, "model.layers.0.self_attn.q_proj") == "int4[1x32]"


def test_expressions_match_the_whole_name() -> None:
    made = config(extra_config={r".*mlp\.gate": {"bits": 16}})
    router = decide(made, "model.layers.0.mlp.gate")
    assert (router.kind, router.source) == ("unquantized", r"extra_config['.*mlp\\.gate']")
    assert scheme(made, "model.layers.0.mlp.gate_proj") == "int4[1x32]"


def test_an_override_may_change_the_packing_and_the_kind_of_number() -> None:
    made = config(
        extra_config={
            UP: {"packing_format": "auto_round:auto_awq", "sym": False},
            DOWN: {"data_type": "fp", "bits": 8, "group_size": -1},
        }
    )
    assert scheme(made, UP) == "uint4[1x32]:zero"
    assert scheme(made, DOWN) == "fp8_e4m3[1x*]"


@pytest.mark.parametrize(
    "blocks",
    [
        {"block_name_to_quantize": "model.layers"},
        {"block_name_to_quantize": "model.layers, model.other"},
        {"to_quant_block_names": ["model.layers", "model.other"]},
        {"to_quant_block_names": [["model.layers.0", "model.layers.1"], ["model.other.0"]]},
    ],
)
def test_layers_outside_the_blocks_are_left_as_they_are(blocks: Any) -> None:
    made = config(**blocks)
    assert scheme(made, UP) == "int4[1x32]"
    assert scheme(made, UP.replace("model.", "model.language_model.")) == "int4[1x32]"
    outside = decide(made, "model.visual.blocks.0.attn.qkv")
    field = next(iter(blocks))
    assert (outside.kind, outside.source) == ("unquantized", f"{field}, which does not hold it,")
    named = config(**blocks, extra_config={"model.visual.blocks.0.attn.qkv": {"bits": 8}})
    assert scheme(named, "model.visual.blocks.0.attn.qkv") == "int8[1x32]"


def test_block_ten_is_not_block_one() -> None:
    made = config(to_quant_block_names=[["model.layers.1"]])
    assert scheme(made, "model.layers.1.mlp.up_proj") == "int4[1x32]"
    assert scheme(made, "model.layers.10.mlp.up_proj") == "None"


def test_the_head_is_quantized_where_it_is_named() -> None:
    assert decide(config(), "lm_head", kind="head").kind == "unquantized"
    made = config(block_name_to_quantize="model.layers", extra_config={"lm_head": {"bits": 8}})
    assert scheme(made, "lm_head", kind="head") == "int8[1x32]"
    left = config(extra_config={"lm_head": {"bits": 8}}, modules_to_not_convert=["lm_head"])
    assert decide(left, "lm_head", kind="head").source == "modules_to_not_convert[0] = 'lm_head'"


def test_shards_that_are_overridden_differently_are_refused() -> None:
    made = config(extra_config={"model.layers.0.self_attn.k_proj": {"bits": 8}})
    decision = decide(made, "model.layers.0.self_attn.qkv_proj")
    assert decision.error and "disagree" in decision.because


def test_stored_tensors_decide() -> None:
    made = config(block_name_to_quantize="model.layers")
    stored = {
        "qweight": StoredTensor(dtype="int32", shape=(8, 64)),
        "qzeros": StoredTensor(dtype="int32", shape=(2, 8)),
        "scales": StoredTensor(dtype="float16", shape=(2, 64)),
    }
    facts = LayerFacts(prefix="visual.blocks.0.fc1", stored=stored)
    found = made.scheme_for(facts).scheme
    assert found is not None and made.weight_shape(found, facts) == (64, 64)
    assert made.notes() == (
        "visual.blocks.*.fc1 is stored with qweight, though block_name_to_quantize, which does "
        "not hold it, leaves it out; the stored tensors decide",
    )


def test_the_kv_cache_may_be_in_fp8() -> None:
    assert str(config(static_kv_dtype="fp8").kv_cache_spec()) == "fp8_e4m3[tensor]"
    assert str(config(static_kv_dtype="torch.float8_e4m3fn").kv_cache_spec()) == "fp8_e4m3[tensor]"
    assert config().kv_cache_spec() is None


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"rotation_config": {"backend": "x"}}, "rotation_config rotates weights"),
        ({"bits": 16}, "quantizes no weights"),
        ({"extra_config": {UP: {"data_type": "nv_fp"}}}, f"extra_config[{UP!r}] is nv_fp"),
    ],
)
def test_kinds_to_come_are_named(fields: Any, text: str) -> None:
    with pytest.raises(MethodNotYetError) as caught:
        config(**fields)
    assert text in str(caught.value)


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"extra_config": [UP]}, "auto-round: extra_config is"),
        ({"extra_config": {UP: 8}}, "auto-round: extra_config is"),
        ({"extra_config": {UP: {"bits": 12}}}, f"auto-round: extra_config[{UP!r}]: bits is 12"),
        ({"extra_config": {"a(": {"bits": 8}}}, "extra_config['a('] is no regular expression"),
        ({"block_name_to_quantize": [["a", 3]]}, "block_name_to_quantize is"),
    ],
)
def test_impossible_fields_name_themselves(fields: Any, text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        config(**fields)
    assert text in str(caught.value)


def test_a_shift_of_all_weights_is_explained_by_the_packing() -> None:
    for packing, steps, other in (("auto_gptq", -1, "gptq_v2"), ("gptqmodel", 1, "gptq")):
        made = config(sym=False, packing_format=f"auto_round:{packing}")
        assert f"written as {other} has them, though packing_format" in made.explain_shift(steps)
        assert made.explain_shift(-steps) == ""


def test_published_configs_decide_rightly(shared: Path) -> None:
    rows = json.loads((shared / "cases" / "real-configs.json").read_text())
    blocks = [row["config"].get("quantization_config") or {} for row in rows]
    (block,) = [block for block in blocks if block.get("quant_method") == "auto-round"]
    found = str(AutoRoundConfig.from_config(block).scheme_for(LayerFacts(prefix=UP)).scheme)
    assert found == "fp4_e2m1[1x32]:e8m0:even x fp4_e2m1[1x32]:e8m0:even:dynamic"
