"""modelopt: both shapes of its settings, lists of globs, a scheme for each layer, its names."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from quantdock.checkpoint.block_dialects import flatten
from quantdock.configs.modelopt import (
    ModelOptConfig,
    ModelOptFp4Config,
    ModelOptFp8Config,
    ModelOptMixedConfig,
    ModelOptMxfp8Config,
    PetitNvfp4Config,
)
from quantdock.errors import ConfigError, MethodNotYetError
from quantdock.schemes import LayerFacts, StoredTensor

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
        ({"quant_algo": "NVFP4_SVD"}, "quantization_config says quant_algo = 'NVFP4_SVD'"),
        ({"quant_algo": None}, "quant_algo is missing"),
        (mixed(a={"quant_algo": "W4A8_AWQ"}), "quantized_layers['a'] says quant_algo = 'W4A8_AWQ'"),
    ],
)
def test_kinds_to_come_are_named(fields: Any, text: str) -> None:
    with pytest.raises(MethodNotYetError) as caught:
        config(**fields)
    assert text in str(caught.value)


def test_what_is_no_object_is_an_error_and_no_kind_to_come() -> None:
    with pytest.raises(ConfigError, match=r"quantized_layers\['a'\] is 'FP8', which is no object"):
        config(**mixed(a="FP8"))


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


NVFP4 = "fp4_e2m1[1x16]:e4m3:second[*x*]"
W4A4 = f"{NVFP4} x fp4_e2m1[1x16]:e4m3:dynamic:second[*x*]"
MXFP8 = "fp8_e4m3[1x32]:e8m0:ceil x fp8_e4m3[1x32]:e8m0:ceil:dynamic"


@pytest.mark.parametrize(
    ("config_class", "block", "expected"),
    [
        (ModelOptFp4Config, {"quant_algo": "NVFP4", "group_size": 16}, W4A4),
        (ModelOptFp4Config, {"quant_algo": "W4A16_NVFP4"}, NVFP4),
        (PetitNvfp4Config, {"quant_algo": "NVFP4"}, NVFP4),
        (ModelOptMxfp8Config, {"quant_algo": "MXFP8"}, MXFP8),
        (ModelOptMixedConfig, mixed(**{UP.prefix: {"quant_algo": "NVFP4"}}), W4A4),
    ],
)
def test_each_kind_has_a_name_of_its_own(config_class: Any, block: Any, expected: str) -> None:
    made = config_class.from_config(block)
    assert str(made.scheme_for(UP).scheme) == expected
    with pytest.raises(ConfigError, match=f"{config_class.name} was asked for"):
        config_class.from_config({"quant_algo": "W8A16"})


def test_weights_alone_ask_for_no_scale_of_an_input() -> None:
    stored = {
        "weight": StoredTensor(dtype="uint8", shape=(32, 32)),
        "weight_scale": StoredTensor(dtype="float8_e4m3fn", shape=(32, 4)),
        "weight_scale_2": StoredTensor(dtype="float32", shape=()),
    }
    facts = LayerFacts(prefix=UP.prefix, stored=stored)
    needed = {}
    for config_class in (ModelOptFp4Config, PetitNvfp4Config):
        made = config_class.from_config({"quant_algo": "NVFP4"})
        slots = made.slots(made.scheme_for(facts).scheme, 32, 64, facts)
        needed[config_class] = {slot.name for slot in slots if slot.default is None}
    assert needed[PetitNvfp4Config] == set(stored)
    assert needed[ModelOptFp4Config] == {*stored, "input_scale"}


def test_published_configs_decide_rightly(shared: Path) -> None:
    rows = json.loads((shared / "cases" / "real-configs.json").read_text())
    outcomes = {}
    for row in rows:
        block = row["config"].get("quantization_config") or {}
        side = row.get("sidecar", {}).get("hf_quant_config.json")
        if block.get("quant_method") != "modelopt" and side is None:
            continue
        made = ModelOptConfig.from_config(block or flatten(dict(side)))
        told = {str(reader.decide(UP, None).scheme) for reader in made.readers}
        outcomes[row["model"]] = told if len(told) > 1 else told.pop()
    assert outcomes == {
        "nvidia/Llama-3.1-70B-Instruct-FP8": FP8,
        "lovedheart/Qwen3.8-Flash-Next-NVFP4-FP8": "fp8_e4m3[128x128]",
        "nvidia/DeepSeek-V3.1-NVFP4": W4A4,
        "nvidia/DeepSeek-V3.2-NVFP4": W4A4,
        "nvidia/GLM-5.1-NVFP4": W4A4,
        "nvidia/Gemma-4-31B-IT-NVFP4": W4A4,
        "nvidia/Gemma-4-26B-A4B-NVFP4": W4A4,
        "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-NVFP4": W4A4,
        "nvidia/Qwen3-235B-A22B-NVFP4": W4A4,
        "nvidia/Qwen3.5-397B-A17B-NVFP4": W4A4,
        "nvidia/MiniMax-M3-NVFP4": {MXFP8, W4A4},
        "nvidia/NVIDIA-Nemotron-3.5-Lightning-30B-A3B-NVFP4": {FP8, NVFP4},
        "nvidia/Qwen3.6-27B-NVFP4": {FP8, NVFP4},
        "ModelOpt mixed FP8/NVFP4 (exporter example)": {FP8, W4A4},
    }


def test_lists_of_published_files_leave_the_right_layers_out(shared: Path) -> None:
    rows = json.loads((shared / "cases" / "real-configs.json").read_text())
    blocks = {row["model"]: row["config"].get("quantization_config") for row in rows}
    glm = ModelOptConfig.from_config(blocks["nvidia/GLM-5.1-NVFP4"])
    asked = {
        "model.layers.0.mlp.up_proj": "None",
        "model.layers.1.mlp.up_proj": "None",
        "model.layers.10.mlp.experts.0.up_proj": W4A4,
        "model.layers.10.mlp.shared_experts.up_proj": "None",
        "model.layers.12.self_attn.o_proj": "None",
    }
    assert {name: str(decide(glm, name).scheme) for name in asked} == asked
    minimax = ModelOptConfig.from_config(blocks["nvidia/MiniMax-M3-NVFP4"])
    stem = "language_model.model.layers"
    asked = {
        f"{stem}.0.mlp.gate_up_proj": MXFP8,
        f"{stem}.3.block_sparse_moe.experts.0.w1": W4A4,
        f"{stem}.10.block_sparse_moe.gate": "None",
        "vision_tower.blocks.0.fc1": "None",
    }
    assert {name: str(decide(minimax, name).scheme) for name in asked} == asked
