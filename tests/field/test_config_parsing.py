"""Quantization blocks of the field: S01, S11, S12, S33 to S36, S56."""

from __future__ import annotations

import json

import pytest
import torch

import quantdock
import toy_llava
from quantdock.cli.app import run as run_cli
from quantdock.errors import (
    CheckpointError,
    ConfigError,
    LoadError,
    MethodLookupError,
    MethodNotYetError,
)
from quantdock.schemes import LayerFacts
from quantdock.testing import use_plugins
from toy_llama import (
    BLOCK,
    DOWN,
    LINEARS,
    STATIC,
    Q,
    codes,
    llama,
    load,
    logits,
    plans,
    run,
    with_input_scales,
    write,
    write_json,
)

CPU = "cpu:generic"
UP = LayerFacts(prefix="model.layers.0.mlp.up_proj")
HEAD = LayerFacts(prefix="lm_head", kind="head")


def explain(block, **options):
    return quantdock.explain({"quantization_config": block}, platform=CPU, **options)


def parse(block):
    return quantdock.get_quantization_config(block["quant_method"], CPU).from_config(block)


def error_of(command, capsys):
    """Return the error text of one command line that fails, as one line."""
    assert run_cli(command) == 1
    captured = capsys.readouterr()
    assert captured.out == "" and "Traceback" not in captured.err
    return " ".join(captured.err.split())


@pytest.mark.parametrize("key", ["text_config", "both"])
def test_s01_a_block_in_the_language_config_is_for_the_language_model(tmp_path, key):
    top = BLOCK if key == "both" else None
    folder = toy_llava.write(tmp_path, toy_llava.tensors("128x128"), top, BLOCK)
    model = load(folder)
    found = plans(model)
    down = found[toy_llava.in_file(DOWN)]
    assert down.scheme == "fp8_e4m3[128x128] x fp8_e4m3[1x128]:dynamic"
    assert down.source == "the file's headers"
    for name in (toy_llava.TOWER_FC1, "multi_modal_projector.linear_1"):
        assert found[name].decision == "unquantized"
        assert found[name].source == "config.json: text_config"
    assert sum(layer.decision == "quantized" for layer in found.values()) == len(LINEARS)
    assert model.quantdock_plan.unused == ()
    plan = quantdock.explain(folder, platform=CPU)
    assert {p.prefix: p.decision for p in plan.layers} == {
        name: layer.decision for name, layer in found.items()
    }
    plain = load(write(tmp_path / "llama", llama("128x128"), BLOCK))
    assert torch.equal(logits(model), logits(plain))


def test_s01_two_blocks_that_differ_say_which_one_is_used(tmp_path):
    other = {**BLOCK, "weight_block_size": [64, 64]}
    folder = toy_llava.write(tmp_path, toy_llava.tensors("128x128"), BLOCK, other)
    (warning,) = [w for w in load(folder).quantdock_plan.warnings if "differ" in w]
    assert warning.startswith("config.json: quantization_config (used) and config.json: text_")
    assert "weight_block_size is [128, 128] and [64, 64]" in warning


def test_s11_null_lists_and_other_spellings():
    fbgemm = parse(
        {
            "quant_method": "fbgemm_fp8",
            "activation_scale_ub": 1200.0,
            "modules_to_not_convert": None,
        }
    )
    assert fbgemm.activation_scale_ub == 1200.0 and fbgemm.ignored_layers == ()
    assert fbgemm.scheme_for(UP).kind == "quantized"
    said, silent = parse({**BLOCK, "fmt": "float8_e4m3fn"}), parse(BLOCK)
    short, loud = parse({**BLOCK, "fmt": "e4m3"}), parse({**BLOCK, "fmt": "FLOAT8_E4M3FN"})
    for config in (said, short, loud):
        assert config.scheme_for(UP) == silent.scheme_for(UP)
    for key in ("ignored_layers", "modules_to_not_convert"):
        listed = parse({**BLOCK, key: ["lm_head", "mlp.up_proj"]})
        assert listed.scheme_for(HEAD).source == f"{key}[0] = 'lm_head'"
        assert listed.scheme_for(UP).source == f"{key}[1] = 'mlp.up_proj'"
        assert parse({**BLOCK, key: None}).scheme_for(UP).kind == "quantized"


def test_s11_the_same_file_in_every_spelling_is_the_same_model(tmp_path):
    tensors = llama("128x128")
    results = []
    for index, more in enumerate(
        ({}, {"fmt": "e4m3"}, {"fmt": "float8_e4m3fn", "modules_to_not_convert": None})
    ):
        model = load(write(tmp_path / str(index), tensors, {**BLOCK, **more}))
        results.append((logits(model), [p.scheme for p in model.quantdock_plan.layers]))
    assert all(torch.equal(r[0], results[0][0]) and r[1] == results[0][1] for r in results)


def test_s12_an_unknown_method_names_itself_its_place_and_what_runs(tmp_path, capsys):
    folder = write(tmp_path, llama("128x128"), {**BLOCK, "quant_method": "fp9"})
    for call in (lambda: load(folder), lambda: quantdock.explain(folder)):
        with pytest.raises(MethodLookupError) as caught:
            call()
        text = str(caught.value)
        assert "There is no quantization method 'fp9' on cpu" in text
        assert "asked for by config.json: quantization_config" in text
        assert "Did you mean fp8?" in text
        assert set(caught.value.runnable) >= {"fp8", "mxfp8", "none"}
        assert not set(caught.value.runnable) & {"gptq_marlin_24", "marlin", "aqlm", "fp9"}
    assert "There is no quantization method 'fp9'" in error_of(["explain", str(folder)], capsys)


def test_s12_near_misses_are_understood():
    assert explain({**BLOCK, "quant_method": "FP8"}).method == "fp8"
    assert explain({**BLOCK, "quant_method": "W8A8-FP8"}).method == "w8a8_fp8"
    plan = explain({"quant_method": "compressed_tensors", "bits": 4})
    assert plan.method == "compressed-tensors"
    assert plan.unsupported.startswith("known, not yet: dialect compressed-tensors. ")
    for written in ("auto_round", "INC", "intel/auto-round"):
        plan = explain({"quant_method": written, "bits": 4, "group_size": 128, "sym": True})
        assert (plan.method, plan.unsupported) == ("auto-round", None)


@pytest.mark.parametrize(
    ("block", "text"),
    [
        ({"quant_method": ""}, "quant_method is ''"),
        ({"bits": 4, "group_size": 128}, "it has no quant_method"),
        ("gptq", "is a str, 'gptq', and not an object"),
        ({}, "it has no quant_method"),
    ],
)
def test_s12_blocks_without_a_method_are_one_clear_error(tmp_path, capsys, block, text):
    folder = write(tmp_path, llama(), block)
    for call in (load, quantdock.explain):
        with pytest.raises(ConfigError, match=r"config\.json: quantization_config") as caught:
            call(folder)
        assert text in str(caught.value)
    assert text in error_of(["generate", str(folder), "x"], capsys)


def test_s12_a_name_of_another_device_is_not_on_the_cpus_list():
    with use_plugins(), pytest.raises(MethodNotYetError) as caught:
        quantdock.get_quantization_config("gptq_marlin_24", CPU)
    assert "gptq_marlin_24" not in caught.value.runnable
    assert f"runs on cpu:generic: {', '.join(caught.value.runnable)}\n" in str(caught.value)
    assert set(caught.value.runnable) >= {"awq", "compressed-tensors", "fp8", "gptq"}


MODELOPT = {
    "quant_algo": "FP8",
    "kv_cache_scheme": "FP8",
    "ignore": ["lm_head"],
    "producer": {"name": "modelopt", "version": "0.31.0"},
    "config_groups": {"group_0": {"weights": {"num_bits": 8, "type": "float", "dynamic": False}}},
}


def test_s33_modelopt_without_quant_method_is_recognised(tmp_path):
    folder = write(tmp_path, with_input_scales(llama("*x*")), MODELOPT)
    plan = quantdock.explain(folder, platform=CPU)
    assert (plan.method, plan.unsupported) == ("modelopt", None)
    layers = {layer.prefix: layer for layer in plan.layers}
    assert {layers[name].scheme for name in LINEARS} == {"fp8_e4m3[*x*] x fp8_e4m3[*x*]"}
    assert layers[HEAD.prefix].source == "ignore[0] = 'lm_head'"
    config = parse({**MODELOPT, "quant_method": "modelopt"})
    assert str(config.kv_cache_spec()) == "fp8_e4m3[tensor]"
    assert logits(load(folder)).isfinite().all()


@pytest.mark.parametrize("scheme", ["FP8", {"num_bits": 8, "type": "float"}])
def test_s33_the_kv_scheme_may_be_a_word_or_an_object(scheme):
    assert str(parse({**STATIC, "kv_cache_scheme": scheme}).kv_cache.spec) == "fp8_e4m3[tensor]"


def test_s34_two_sources_that_disagree_are_told_with_both_values(tmp_path):
    block = {**BLOCK, "ignored_layers": ["lm_head"]}
    folder = write(tmp_path, llama("128x128"), block)
    write_json(folder / "quantization_config.json", {**block, "activation_scheme": "static"})
    model = load(folder)
    (warning,) = [w for w in model.quantdock_plan.warnings if "differ" in w]
    assert warning == (
        "config.json: quantization_config (used) and quantization_config.json differ: "
        'activation_scheme is "dynamic" and "static"'
    )


def test_s34_a_side_file_alone_is_read(tmp_path):
    folder = write(tmp_path, llama("128x128"))
    write_json(folder / "quantization_config.json", BLOCK)
    plan = load(folder).quantdock_plan
    assert plan.method_source == "quantization_config.json says fp8"
    assert plan.totals.quantized == len(LINEARS)


def test_s35_private_and_unknown_keys_are_kept_and_do_no_harm(tmp_path):
    private = {"_load_in_4bit": False, "backend": "x", "batch_size": 8, "some_future_key": {"x": 1}}
    config = parse({**BLOCK, **private})
    assert config.extra == private
    assert config.scheme_for(UP) == parse(BLOCK).scheme_for(UP)
    model = load(write(tmp_path, llama("128x128"), {**BLOCK, **private}))
    assert model.quantdock_plan.totals.quantized == len(LINEARS)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("fmt", "nf9"),
        ("activation_scheme", "sometimes"),
        ("weight_block_size", [128]),
        ("ignored_layers", "lm_head"),
        ("scale_fmt", 7),
    ],
)
def test_s35_an_impossible_value_of_a_known_key_names_both(tmp_path, capsys, field, value):
    folder = write(tmp_path, llama("128x128"), {**BLOCK, field: value})
    with pytest.raises(ConfigError, match=field) as caught:
        load(folder)
    assert f"fp8: {field} is {value!r}." in str(caught.value)
    assert f"{field} is {value!r}" in error_of(["explain", str(folder)], capsys)


@pytest.mark.parametrize("words", [{"qscheme_act": "TENSOR"}, {}])
def test_s36_words_and_scales_of_mistrals_own_files(tmp_path, words):
    tensors = llama()
    for name in LINEARS:
        weight = tensors[f"{name}.weight"]
        tensors[f"{name}.weight"] = codes(*weight.shape)
        tensors[f"{name}.qscale_weight"] = torch.tensor(0.01)
        tensors[f"{name}.qscale_act"] = torch.tensor(0.05)
    folder = write(tmp_path, tensors)
    params = {"dim": 256, "quantization": {"qformat_weight": "fp8_e4m3", **words}}
    write_json(folder / "params.json", params)
    model = load(folder)
    layer = model.get_submodule(Q)
    assert layer.weight_scale.flatten().tolist() == [pytest.approx(0.01)]
    assert layer.input_scale.tolist() == [pytest.approx(0.05)]
    assert plans(model)[Q].scheme == "fp8_e4m3[*x*] x fp8_e4m3[*x*]"
    x = torch.full((1, 256), 0.5)
    assert run(model, Q, x).flatten().tolist() == [pytest.approx(1.28)] * 256


def test_s36_no_scales_means_dynamic_and_unknown_words_are_errors(tmp_path):
    folder = write(tmp_path, llama("*x*"))
    block = {"qformat_weight": "fp8_e4m3", "qscheme_act": "NO_SCALES"}
    write_json(folder / "params.json", {"quantization": block})
    assert plans(load(folder))[Q].scheme == "fp8_e4m3[*x*] x fp8_e4m3[1x*]:dynamic"
    write_json(folder / "params.json", {"quantization": {"qformat_weight": "fp6"}})
    for call in (load, quantdock.explain):
        with pytest.raises(ConfigError, match="qformat_weight is 'fp6'"):
            call(folder)


def test_s36_a_native_folder_is_known_and_not_yet(tmp_path):
    folder = write(tmp_path, llama("*x*"))
    (folder / "model.safetensors").rename(folder / "consolidated.safetensors")
    (folder / "config.json").unlink()
    block = {"qformat_weight": "fp8_e4m3", "qscheme_act": "TENSOR"}
    write_json(folder / "params.json", {"dim": 256, "quantization": block})
    plan = quantdock.explain(folder, platform=CPU)
    assert plan.unsupported.startswith("known, not yet: dialect mistral-native")
    assert (plan.method, {r.scheme for r in plan.rules if r.kind == "linear"}) == (
        "fp8",
        {"fp8_e4m3[*x*] x fp8_e4m3[*x*]"},
    )
    with pytest.raises(CheckpointError, match=r"Mistral-native weights \(known, not yet\)"):
        load(folder)


@pytest.mark.parametrize("nested", [True, False])
def test_s56_fp8_under_the_old_key_is_the_same_model(tmp_path, nested):
    args = {"num_bits": 8, "type": "float", "strategy": "channel"}
    flat = {
        "quant_method": "compressed-tensors",
        "format": "float-quantized",
        "ignore": ["lm_head"],
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": args}},
    }
    old = {"sparsity_config": None, "quantization_config": {**flat, "quant_method": "sparseml"}}
    tensors = llama("1x*")
    modern = load(write(tmp_path / "modern", tensors, flat))
    model = load(write(tmp_path / "old", tensors, compression_config=old if nested else flat))
    assert model.quantdock_plan.method_source.startswith("config.json: compression_config says")
    assert model.quantdock_plan.layers == modern.quantdock_plan.layers
    assert model.quantdock_plan.totals.quantized == len(LINEARS)
    assert torch.equal(logits(model), logits(modern))


@pytest.mark.parametrize("method", [None, "gptq", "fp8"])
def test_tensors_that_nothing_describes_are_told_first_by_every_door(shared, tmp_path, method):
    """A name that was asked for does not make the file a 16-bit one."""
    source = shared / "models" / "gptq-w4-g32-asym-v2"
    config = json.loads((source / "config.json").read_text())
    del config["quantization_config"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "model.safetensors").symlink_to(source / "model.safetensors")
    told = "The checkpoint has quantization tensors, but nothing says how it is quantized."
    for door in (quantdock.explain, quantdock.load):
        with pytest.raises(LoadError) as caught:
            door(tmp_path, quantization=method)
        assert caught.value.what == told
    report = quantdock.doctor(tmp_path, quantization=method, quick=True)
    failed = [outcome for outcome in report.outcomes if outcome.status == "fail"]
    assert [(outcome.name, outcome.summary) for outcome in failed] == [("metadata", told)]
