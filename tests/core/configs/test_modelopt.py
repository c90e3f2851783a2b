"""modelopt: both shapes of its settings, lists of globs, a scheme for each layer, its names."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from quantdock.checkpoint.block_dialects import flatten
from quantdock.configs.modelopt import ModelOptConfig, ModelOptFp8Config
from quantdock.errors import ConfigError, MethodNotYetError
from quantdock.schemes import LayerFacts

UP = LayerFacts(prefix="model.layers.0.mlp.up_proj")
HEAD = LayerFacts(prefix="lm_head", kind="head")
FP8 = "fp8_e4m3[*x*] x fp8_e4m3[*x*]"


def config(**fields: Any) -> ModelOptConfig:
    return ModelOptConfig.from_config({"quant_algo": "FP8", **fields})


def decide(made: ModelOptConfig, prefix: str) -> Any:
    return made.scheme_for(LayerFacts(prefix=prefix))


def test_both_shapes_of_the_settings_say_the_same() -> None:
    nested = {
        "producer": {"name": "modelopt", "version": "0.23.0"},
        "quantization": {
            "quant_algo": "FP8",
            "kv_cache_quant_algo": "FP8",
            "exclude_modules": ["lm_head"],
        },
    }
    group = {"weights": {"num_bits": 8, "type": "float", "dynamic": False}, "targets": ["Linear"]}
    flat = {
        "quant_method": "modelopt",
        "quant_algo": "FP8",
        "kv_cache_scheme": {"dynamic": False, "num_bits": 8, "type": "float"},
        "ignore": ["lm_head"],
        "config_groups": {"group_0": group},
        "producer": {"name": "modelopt", "version": "0.47.0"},
    }
    for block in (flatten(nested), flat):
        made = ModelOptConfig.from_config(block)
        assert str(made.scheme_for(UP).scheme) == FP8
        assert str(made.kv_cache_spec()) == "fp8_e4m3[tensor]"
        assert made.scheme_for(HEAD).kind == "unquantized"
        assert made.extra == {} and made.unmatched() == ()


def test_lists_are_globs_over_whole_names() -> None:
    made = config(exclude_modules=["model.layers.0*", "model.layers.1.*", "visual"])
    for left_out in ("model.layers.0.mlp.up_proj", "model.layers.1.mlp.up_proj", "visual.blocks.0"):
        assert decide(made, left_out).kind == "unquantized", left_out
    for kept in ("model.layers.10.mlp.up_proj", "model.layers.2.visual.q_proj"):
        assert decide(made, kept).kind == "quantized", kept


def mixed(**layers: Any) -> dict[str, Any]:
    return {"quant_algo": "MIXED_PRECISION", "quantized_layers": layers}


def test_each_layer_may_have_its_own_algorithm() -> None:
    made = config(
        **mixed(
            **{
                "model.layers.0.self_attn.q_proj": {"quant_algo": "FP8"},
                "model.layers.0.mlp.up_proj": {"quant_algo": "W4A16_AWQ", "group_size": 64},
                "model.layers.0.mlp.gate_proj": {"quant_algo": "W4A16_AWQ", "group_size": 64},
            }
        )
    )
    assert str(decide(made, "model.layers.0.self_attn.q_proj").scheme) == FP8
    gate = decide(made, "model.layers.0.mlp.gate_up_proj")
    assert str(gate.scheme) == "int4[1x64] + input multiplier"
    other = decide(made, "model.layers.0.mlp.down_proj")
    assert (other.kind, other.source) == (
        "unquantized",
        "quantized_layers, which does not name it,",
    )
    assert len(made.readers) == 2
    disagree = config(
        **mixed(
            **{
                "model.layers.0.mlp.up_proj": {"quant_algo": "FP8"},
                "model.layers.0.mlp.gate_proj": {"quant_algo": "W8A16"},
            }
        )
    )
    assert decide(disagree, "model.layers.0.mlp.gate_up_proj").error


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"quant_algo": "NVFP4"}, "quantization_config says quant_algo = 'NVFP4'"),
        ({"quant_algo": None}, "quant_algo is missing"),
        (mixed(a={"quant_algo": "MXFP8"}), "quantized_layers['a'] says quant_algo = 'MXFP8'"),
        (mixed(a="FP8"), "quantized_layers['a'] is 'FP8' and no object"),
    ],
)
def test_kinds_to_come_are_named(fields: Any, text: str) -> None:
    with pytest.raises(MethodNotYetError) as caught:
        config(**fields)
    assert text in str(caught.value)


@pytest.mark.parametrize("layers", [None, {}, ["a"]])
def test_mixed_files_name_their_layers(layers: Any) -> None:
    with pytest.raises(ConfigError, match="modelopt: quantized_layers is"):
        config(quant_algo="MIXED_PRECISION", quantized_layers=layers)


def test_a_name_for_fp8_alone_refuses_other_algorithms() -> None:
    made = ModelOptFp8Config.from_config({"quant_algo": "FP8_PB_WO"})
    assert str(made.scheme_for(UP).scheme) == "fp8_e4m3[128x128]"
    with pytest.raises(ConfigError, match="modelopt_fp8 was asked for") as caught:
        ModelOptFp8Config.from_config({"quant_algo": "W8A16"})
    assert "ask for 'modelopt'" in caught.value.todo


def test_published_configs_decide_rightly_or_are_refused_by_name(shared: Path) -> None:
    rows = json.loads((shared / "cases" / "real-configs.json").read_text())
    outcomes = {}
    for row in rows:
        block = row["config"].get("quantization_config") or {}
        side = row.get("sidecar", {}).get("hf_quant_config.json")
        if block.get("quant_method") != "modelopt" and side is None:
            continue
        try:
            made = ModelOptConfig.from_config(block or flatten(dict(side)))
        except MethodNotYetError as error:
            outcomes[row["model"]] = error.why[0].partition(" says ")[2]
        else:
            outcomes[row["model"]] = str(made.scheme_for(UP).scheme)
    assert outcomes["nvidia/Llama-3.1-70B-Instruct-FP8"] == FP8
    assert outcomes["lovedheart/Qwen3.8-Flash-Next-NVFP4-FP8"] == "None"  # one other layer is fp8
    others = set(outcomes) - {
        "nvidia/Llama-3.1-70B-Instruct-FP8",
        "lovedheart/Qwen3.8-Flash-Next-NVFP4-FP8",
    }
    assert len(others) == 12
    known = ("NVFP4", "MXFP8", "W4A16_NVFP4")
    assert {outcomes[name] for name in others} <= {f"quant_algo = {word!r}" for word in known}
