"""Finding the quantization block, wherever tools have put it."""

from __future__ import annotations

import copy
import json

import pytest

from quantdock.checkpoint import find_quantization
from quantdock.errors import CheckpointError, ConfigError
from tests.sparse_files import write_json

FP8 = {"quant_method": "fp8", "weight_block_size": [128, 128]}
GPTQ = {"bits": 4, "group_size": 128, "desc_act": True, "sym": True, "damp_percent": 0.1}
CT_GROUP = {"targets": ["Linear"], "weights": {"num_bits": 4, "type": "int", "strategy": "group"}}


def test_nothing_is_found_where_nothing_is_said(tmp_path):
    assert find_quantization({"model_type": "llama", "quantization_config": None}, tmp_path) is None


def test_the_top_level(tmp_path):
    found = find_quantization({"quantization_config": FP8}, tmp_path)
    assert (found.method, found.scope, found.warnings) == ("fp8", "", ())
    assert found.source == "config.json: quantization_config"
    assert found.block == FP8


def test_the_block_is_a_copy():
    config = {"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}}
    before = copy.deepcopy(config)
    block = find_quantization(config).block
    block["weight_block_size"].append(7)
    block["more"] = 1
    assert config == before


@pytest.mark.parametrize(
    "path",
    [
        "text_config",
        "llm_config",
        "language_config",
        "thinker_config",
        "thinker_config.text_config",
    ],
)
def test_language_parts(path):
    config = {"quantization_config": FP8}
    for key in reversed(path.split(".")):
        config = {key: config, "vision_config": {"hidden_size": 64}}
    found = find_quantization(config)
    assert (found.method, found.scope) == ("fp8", path)
    assert found.source == f"config.json: {path}.quantization_config"


def test_the_same_block_twice_covers_what_the_narrower_place_says():
    found = find_quantization(
        {"quantization_config": FP8, "text_config": {"quantization_config": dict(FP8)}}
    )
    assert (found.scope, found.warnings) == ("text_config", ())


def test_two_blocks_that_differ_are_reported_with_both_values():
    other = {"quant_method": "fp8", "weight_block_size": [64, 64]}
    found = find_quantization(
        {"quantization_config": FP8, "text_config": {"quantization_config": other}}
    )
    assert found.block == FP8 and found.scope == ""
    assert found.warnings == (
        "config.json: quantization_config (used) and config.json: text_config.quantization_config "
        "differ: weight_block_size is [128, 128] and [64, 64]",
    )


def test_the_old_key_of_sparseml_becomes_the_modern_flat_block():
    group = {"config_groups": {"group_0": CT_GROUP}, "format": "pack-quantized", "ignore": ["x"]}
    old = {"sparsity_config": None, "quantization_config": {"quant_method": "sparseml", **group}}
    found = find_quantization({"compression_config": old})
    assert found.method == "compressed-tensors"
    assert found.source == "config.json: compression_config"
    modern = {"quant_method": "compressed-tensors", **group}
    assert {k: v for k, v in found.block.items() if k != "sparsity_config"} == modern


def test_a_block_of_groups_without_method_is_compressed_tensors():
    assert find_quantization({"quantization_config": {"config_groups": {}}}).method == (
        "compressed-tensors"
    )


@pytest.mark.parametrize(
    "block",
    [
        {"quant_algo": "FP8", "kv_cache_scheme": "FP8", "producer": {"name": "modelopt"}},
        {"producer": {"name": "modelopt", "version": "0.31.0"}, "config_groups": {}},
        {"quant_algo": "NVFP4", "config_groups": {}},
    ],
)
def test_modelopt_is_inferred(block):
    found = find_quantization({"quantization_config": block})
    assert found.method == found.block["quant_method"] == "modelopt"


def test_modelopt_side_file_is_flattened(tmp_path):
    side = {
        "producer": {"name": "modelopt", "version": "0.23.0"},
        "quantization": {"quant_algo": "FP8", "exclude_modules": ["lm_head"]},
    }
    write_json(tmp_path / "hf_quant_config.json", side)
    found = find_quantization({"model_type": "llama"}, tmp_path)
    assert (found.method, found.source) == ("modelopt", "hf_quant_config.json")
    assert found.block["quant_algo"] == "FP8" and found.block["exclude_modules"] == ["lm_head"]
    assert find_quantization({"model_type": "llama"}) is None


def test_modelopt_blocks_in_two_spellings_agree(tmp_path):
    ignore = ["lm_head", "model.layers.0*"]
    top = {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ignore}
    side = {"quantization": {"quant_algo": "NVFP4", "exclude_modules": ignore[::-1]}}
    write_json(tmp_path / "hf_quant_config.json", side)
    assert find_quantization({"quantization_config": top}, tmp_path).warnings == ()


def test_lists_that_differ_say_how(tmp_path):
    top = {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head", "a"]}
    write_json(tmp_path / "hf_quant_config.json", {"quantization": {"exclude_modules": ["a", "b"]}})
    (warning,) = find_quantization({"quantization_config": top}, tmp_path).warnings
    assert "ignore: 2 entries and 2; only the first has lm_head, only the second b" in warning


def test_gptq_from_its_side_file(tmp_path):
    write_json(tmp_path / "quantize_config.json", GPTQ)
    found = find_quantization({}, tmp_path)
    assert (found.method, found.source) == ("gptq", "quantize_config.json")
    assert found.block["desc_act"] is True


def test_gptq_said_twice_and_differently(tmp_path):
    write_json(tmp_path / "quantize_config.json", GPTQ)
    top = {**GPTQ, "quant_method": "gptq", "desc_act": False, "damp_percent": 0.01}
    found = find_quantization({"quantization_config": top}, tmp_path)
    assert found.block["desc_act"] is False
    assert found.warnings == (
        "config.json: quantization_config (used) and quantize_config.json differ: "
        "desc_act is false and true",
    )


def test_awq_in_its_own_words(tmp_path):
    side = {"zero_point": True, "q_group_size": 128, "w_bit": 4, "version": "GEMM"}
    write_json(tmp_path / "quant_config.json", side)
    assert find_quantization({}, tmp_path).method == "awq"
    top = {"quant_method": "awq", "bits": 4, "group_size": 128, "version": "gemm"}
    assert find_quantization({"quantization_config": top}, tmp_path).warnings == ()


@pytest.mark.parametrize(
    ("words", "scheme"),
    [
        ({"qscheme_act": "TENSOR"}, "static"),
        ({}, "static"),
        ({"qscheme_act": "NO_SCALES"}, "dynamic"),
    ],
)
def test_mistral_native_files(tmp_path, words, scheme):
    block = {"qformat_weight": "fp8_e4m3", **words}
    write_json(tmp_path / "params.json", {"dim": 256, "quantization": block})
    found = find_quantization({}, tmp_path)
    assert found.block == {"quant_method": "fp8", "activation_scheme": scheme}


def test_mistral_native_words_that_are_unknown(tmp_path):
    write_json(tmp_path / "params.json", {"quantization": {"qformat_weight": "fp6"}})
    with pytest.raises(ConfigError, match="qformat_weight is 'fp6'"):
        find_quantization({}, tmp_path)


def test_mistral_native_without_quantization_or_with_another_dialect(tmp_path):
    write_json(tmp_path / "params.json", {"dim": 256})
    assert find_quantization({}, tmp_path) is None
    write_json(tmp_path / "params.json", {"quantization": {"config_groups": {"group_0": CT_GROUP}}})
    assert find_quantization({}, tmp_path).method == "compressed-tensors"


def test_modelslim_table(tmp_path):
    table = {"model.layers.0.mlp.up_proj.weight": "W8A8_DYNAMIC"}
    write_json(tmp_path / "quant_model_description.json", table)
    found = find_quantization({}, tmp_path)
    assert (found.method, found.block["quant_description"]) == ("modelslim", table)


@pytest.mark.parametrize(
    ("block", "expected"),
    [
        ("gptq", "is a str, 'gptq', and not an object"),
        (["fp8"], "is a list"),
        ({}, "it has no quant_method"),
        ({"quant_method": ""}, "quant_method is ''"),
        ({"quant_method": None, "bits": 4}, "quant_method is None"),
        ({"bits": 4, "group_size": 128}, "its keys are bits, group_size"),
    ],
)
def test_blocks_that_say_nothing_end_in_one_clear_error(block, expected):
    with pytest.raises(ConfigError) as caught:
        find_quantization({"quantization_config": block})
    assert expected in str(caught.value)
    assert "config.json: quantization_config" in str(caught.value)


def test_a_spelling_is_kept_for_the_registry_to_judge():
    block = {"quant_method": "compressed_tensors"}
    assert find_quantization({"quantization_config": block}).method == "compressed_tensors"


def test_a_broken_side_file_is_named(tmp_path):
    (tmp_path / "quantize_config.json").write_text('{"bits": 4,}')
    with pytest.raises(CheckpointError, match=r"quantize_config.json is not valid JSON \(line 1"):
        find_quantization({"quantization_config": FP8}, tmp_path)


def test_every_real_config_says_a_method(shared, tmp_path):
    entries = json.loads((shared / "cases" / "real-configs.json").read_text())
    methods = {}
    for index, entry in enumerate(entries):
        folder = tmp_path / str(index)
        folder.mkdir()
        for name, content in entry.get("sidecar", {}).items():
            write_json(folder / name, content)
        found = find_quantization(entry["config"], folder)
        methods[entry["model"]] = found and (found.method, found.scope, found.warnings)
    assert methods["moonshotai/Kimi-K3"] == ("compressed-tensors", "text_config", ())
    assert methods["nvidia/Llama-3.1-70B-Instruct-FP8"] == ("modelopt", "", ())
    assert [model for model, found in methods.items() if found is None] == [
        "GGUF Q4_K_M (Llama style)"
    ]
    assert [model for model, found in methods.items() if found and found[2]] == []
