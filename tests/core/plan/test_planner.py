"""explain, from the folder to the plan, on the plain CPU that every installation has."""

from __future__ import annotations

import json
import subprocess
import sys
import time

import pytest

from quantdock import Policy, explain
from quantdock.errors import (
    CheckpointError,
    ConfigError,
    LoadError,
    MethodLookupError,
    NothingQuantizedError,
)
from tests.sparse_files import (
    FP8_BLOCK,
    LLAMA_CONFIG,
    block_fp8,
    deepseek,
    llama,
    plain,
    write_checkpoint,
    write_json,
)

CPU = "cpu:generic"
BLOCK = "fp8_e4m3[128x128] x fp8_e4m3[1x128]:dynamic"
PLAIN_CONFIG = {k: v for k, v in LLAMA_CONFIG.items() if k != "quantization_config"}
UP = "model.layers.0.mlp.up_proj"


def with_block(**changes):
    return {**LLAMA_CONFIG, "quantization_config": {**FP8_BLOCK, **changes}}


def by_prefix(plan):
    return {layer.prefix: layer for layer in plan.layers}


def test_a_block_fp8_checkpoint(tmp_path):
    folder = write_checkpoint(tmp_path / "m", with_block(ignored_layers=["lm_head"]), llama())
    plan = explain(folder, platform=CPU)
    assert (plan.level, plan.method, plan.model_type, plan.dtype) == (2, "fp8", "llama", "bfloat16")
    assert plan.checkpoint == str(folder) and plan.platform == CPU and plan.described
    assert "config.json: quantization_config says fp8" in plan.method_source
    assert (plan.totals.quantized, plan.totals.unquantized) == (14, 2)
    layer = by_prefix(plan)[UP]
    assert (layer.scheme, layer.n, layer.k) == (BLOCK, 256, 256)
    assert layer.bytes_stored == layer.bytes_memory == 256 * 256 + 4 * 4
    assert layer.kernel is not None
    head = by_prefix(plan)["lm_head"]
    assert (head.decision, head.source) == ("unquantized", "ignored_layers[0] = 'lm_head'")
    assert plan.ignore_matched == ("ignored_layers[0] = 'lm_head'",)
    assert plan.ignore_unmatched == () and plan.unsupported is None
    assert not [warning for warning in plan.warnings if "loading would stop" in warning]
    assert plan.bytes_other == 2 * 2 * 256


def test_entries_that_name_nothing_are_told_and_norms_are_not(tmp_path):
    listed = ["lm_head", "model.layers.0.input_layernorm", "model.vision_tower"]
    folder = write_checkpoint(tmp_path / "m", with_block(modules_to_not_convert=listed), llama())
    plan = explain(folder, platform=CPU)
    assert plan.ignore_unmatched == ("modules_to_not_convert[2] = 'model.vision_tower'",)


def test_online_quantization_of_a_plain_checkpoint(tmp_path):
    tensors = {n: ("BF16", s) for n, (_, s) in llama().items() if "scale" not in n}
    folder = write_checkpoint(tmp_path / "m", PLAIN_CONFIG, tensors)
    plan = explain(
        folder,
        platform=CPU,
        quantization="fp8_per_block",
        ignore=["layers.1"],
        choices={"*.o_proj": "none"},
    )
    layers = by_prefix(plan)
    assert layers[UP].scheme == BLOCK
    assert layers[UP].bytes_stored == 2 * 256 * 256
    assert layers[UP].bytes_memory == 256 * 256 + 4 * 4
    assert layers["model.layers.1.mlp.up_proj"].source == "ignore[0] = 'layers.1'"
    assert layers["model.layers.0.self_attn.o_proj"].decision == "unquantized"
    assert plan.totals.quantized == 6


def test_a_plain_checkpoint_that_nobody_quantizes(tmp_path):
    folder = write_checkpoint(tmp_path / "m", PLAIN_CONFIG, plain("model.up_proj", 8, 8))
    plan = explain(folder, platform=CPU)
    assert (plan.method, plan.totals.quantized, plan.totals.unquantized) == ("none", 0, 1)


def test_asking_for_quantization_and_getting_none_is_an_error(tmp_path):
    folder = write_checkpoint(tmp_path / "m", PLAIN_CONFIG, plain("lm_head", 8, 8))
    with pytest.raises(NothingQuantizedError) as caught:
        explain(folder, platform=CPU, quantization="fp8")
    assert "no layer of this checkpoint would be quantized" in str(caught.value)
    assert "leave the head alone" in str(caught.value)


@pytest.mark.parametrize("asked", [{"ignore": ["lm_head"]}, {"choices": {"lm_head": "none"}}])
def test_what_is_for_quantizing_at_load_is_refused_on_a_quantized_checkpoint(asked):
    with pytest.raises(ConfigError) as caught:
        explain(LLAMA_CONFIG, platform=CPU, **asked)
    assert str(caught.value) == (
        "ignore and choices cannot change a checkpoint that is stored in fp8.\n"
        "  config.json: quantization_config says fp8\n"
        "  they say what is quantized at load, of a 16-bit checkpoint\n"
        "Leave them out, or load the 16-bit original of this model with them."
    )


@pytest.mark.parametrize("quantization", [None, "none"])
def test_layers_to_leave_out_of_nothing_are_refused(tmp_path, quantization):
    folder = write_checkpoint(tmp_path / "m", PLAIN_CONFIG, plain("model.up_proj", 8, 8))
    with pytest.raises(ConfigError) as caught:
        explain(folder, platform=CPU, quantization=quantization, ignore=["up_proj"])
    assert "ignore=['up_proj'] leaves layers out of quantization, and none is asked for." in str(
        caught.value
    )


@pytest.mark.parametrize("quantization", [None, "none"])
def test_a_required_kernel_that_has_nothing_to_run_is_an_error(tmp_path, monkeypatch, quantization):
    folder = write_checkpoint(tmp_path / "m", PLAIN_CONFIG, plain("model.up_proj", 8, 8))
    with pytest.raises(NothingQuantizedError) as caught:
        explain(folder, CPU, quantization, policy=Policy(require="reference"))
    assert "The kernel reference was required, and no layer would be quantized." in str(
        caught.value
    )
    monkeypatch.setenv("QUANTDOCK_KERNEL", "reference")  # for whatever this process loads
    assert explain(folder, CPU, quantization).totals.quantized == 0


def test_a_change_of_scheme_that_was_not_allowed_is_told(tmp_path):
    folder = write_checkpoint(tmp_path / "m", LLAMA_CONFIG, llama())
    told = [
        [note for note in explain(folder, "cuda:sm_80", policy=policy).notes if "exact" in note]
        for policy in (Policy(), Policy(exact=True))
    ]
    assert told[0] == []
    (note,) = told[1]
    assert note.startswith(
        f"exact, as asked: {BLOCK} does not run as fp8_e4m3[128x128], which cuda:sm_80 declares"
    )


def test_a_choice_without_a_method_is_refused():
    with pytest.raises(ConfigError, match="quantization='none' leaves every layer as it is"):
        explain(PLAIN_CONFIG, platform=CPU, choices={"lm_head": "fp8"})


def test_quantization_tensors_without_a_block_are_an_error(tmp_path):
    folder = write_checkpoint(tmp_path / "m", PLAIN_CONFIG, llama())
    for quantization in (None, "fp8"):
        with pytest.raises(LoadError, match="nothing says how it is quantized"):
            explain(folder, platform=CPU, quantization=quantization)


def test_none_decodes_a_quantized_checkpoint(tmp_path):
    plan = explain(
        write_checkpoint(tmp_path / "m", LLAMA_CONFIG, llama()), platform=CPU, quantization="none"
    )
    layer = by_prefix(plan)[UP]
    assert plan.method == "none" and plan.summary().startswith("none on cpu:generic: 0 of 16")
    assert plan.method_source.startswith("the user asks for none; decoded from fp8 (config.json")
    assert (layer.decision, layer.bytes_memory) == ("unquantized", 2 * 256 * 256)
    assert layer.because == f"decoded from {BLOCK} to bfloat16 at load, as asked"


def test_the_tensors_decide_against_the_json(tmp_path):
    tensors = llama() | plain("mtp.fc", 256, 512) | plain("model.visual.fc", 64, 64)
    plan = explain(write_checkpoint(tmp_path / "m", LLAMA_CONFIG, tensors), platform=CPU)
    assert by_prefix(plan)["mtp.fc"].decision == "unquantized"
    assert by_prefix(plan)["model.visual.fc"].decision == "unquantized"
    assert any("mtp.fc" in note and "the stored tensors decide" in note for note in plan.notes)


def test_layers_that_store_the_same_are_still_noted_by_their_own_names(tmp_path):
    tensors = llama() | plain("mtp.0.fc", 64, 64) | plain("mtp.1.fc", 64, 64)
    tensors |= plain("other.fc", 64, 64)
    plan = explain(write_checkpoint(tmp_path / "m", LLAMA_CONFIG, tensors), platform=CPU)
    assert [note.partition(" is ")[0] for note in plan.notes] == ["mtp.*.fc", "other.fc"]


def test_a_missing_scale_is_an_error_of_its_layer(tmp_path):
    tensors = {n: t for n, t in llama().items() if n != f"{UP}.weight_scale_inv"}
    plan = explain(write_checkpoint(tmp_path / "m", LLAMA_CONFIG, tensors), platform=CPU)
    assert by_prefix(plan)[UP].decision == "error"
    assert plan.totals.errors == 1
    assert any(f"1 layer ({UP}): cannot be built" in warning for warning in plan.warnings)


def test_a_block_in_the_language_part_gives_the_plan_of_one_at_the_top(tmp_path):
    vision = plain("vision_tower.blocks.0.fc", 64, 64)
    tensors = vision | {f"language_model.{n}": t for n, t in llama().items()}
    inner = {"model_type": "toy_text", "quantization_config": FP8_BLOCK}
    config = {"model_type": "toy_vl", "vision_config": {}, "text_config": inner}
    one = explain(write_checkpoint(tmp_path / "a", config, tensors), platform=CPU)
    both = {**config, "quantization_config": FP8_BLOCK}
    two = explain(write_checkpoint(tmp_path / "b", both, tensors), platform=CPU)
    assert one.layers == two.layers and one.totals.quantized == 14
    assert by_prefix(one)["vision_tower.blocks.0.fc"].source == "config.json: text_config"
    assert "text_config.quantization_config" in one.method_source


def test_json_alone_gives_rules(tmp_path):
    config = {**with_block(modules_to_not_convert=["lm_head"]), "num_local_experts": 4}
    for source in (config, write_json(tmp_path / "config.json", config), tmp_path):
        plan = explain(source, platform=CPU)
        assert (plan.level, plan.layers) == (1, ())
        rules = {rule.prefix.rpartition(".")[2]: rule for rule in plan.rules}
        assert (rules["o_proj"].scheme, rules["o_proj"].n) == (BLOCK, None)
        assert rules["lm_head"].source == "modules_to_not_convert[0] = 'lm_head'"
        assert rules["embed_tokens"].decision == "unquantized"
        assert "lm_head" in plan.notes[0]
        assert {rule.kind for rule in plan.rules} == {
            *("linear", "embedding", "head", "experts", "attention")
        }


@pytest.mark.parametrize(
    ("block", "dialect"),
    [({"quant_method": "aqlm"}, "aqlm"), ({"quant_method": "SPQR", "bits": 3}, "spqr")],
)
def test_known_methods_that_come_later_are_no_error(tmp_path, block, dialect):
    tensors = {"a.qweight": ("I32", (8, 8)), "a.scales": ("F16", (1, 8))}
    folder = write_checkpoint(
        tmp_path / "m", {**PLAIN_CONFIG, "quantization_config": block}, tensors
    )
    plan = explain(folder, platform=CPU)
    assert (plan.level, plan.layers, plan.rules) == (1, (), ())
    assert plan.unsupported.startswith(f"known, not yet: dialect {dialect}. ")
    assert plan.method_source == "config.json: quantization_config"


@pytest.mark.parametrize(
    ("name", "dialect"), [("m.gguf", "gguf"), ("consolidated.safetensors", "mistral-native")]
)
def test_known_files_that_come_later_are_no_error(tmp_path, name, dialect):
    (tmp_path / name).write_bytes(b"GGUF")
    plan = explain(tmp_path, platform=CPU)
    assert plan.unsupported.startswith(f"known, not yet: dialect {dialect}. ")
    assert plan.layers == plan.rules == ()


def test_errors_stay_errors(tmp_path):
    with pytest.raises(CheckpointError, match="no folder"):
        explain(tmp_path / "none", platform=CPU)
    with pytest.raises(MethodLookupError, match="fp9"):
        explain({"quantization_config": {"quant_method": "fp9"}}, platform=CPU)
    with pytest.raises(ConfigError, match="not an object"):
        explain({"quantization_config": "gptq"}, platform=CPU)
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(CheckpointError, match="pickle weights"):
        explain(tmp_path, platform=CPU)


def test_warnings_of_files_and_blocks_reach_the_plan(tmp_path):
    folder = write_checkpoint(tmp_path / "m", LLAMA_CONFIG, llama(), shards=2)
    write_json(folder / "quantization_config.json", {**FP8_BLOCK, "weight_block_size": [64, 64]})
    (folder / "extra.safetensors").write_bytes(b"?")
    warnings = " ".join(explain(folder, platform=CPU).warnings)
    assert "weight_block_size is [128, 128] and [64, 64]" in warnings
    assert "extra.safetensors is not in" in warnings


def test_plans_go_through_json(tmp_path):
    from quantdock import Plan

    plan = explain(write_checkpoint(tmp_path / "m", LLAMA_CONFIG, llama()), platform=CPU)
    assert Plan.from_json(plan.to_json()) == plan


def test_every_real_config_gives_a_plan_or_is_known_and_not_yet(shared, tmp_path):
    entries = json.loads((shared / "cases" / "real-configs.json").read_text())
    outcomes = {}
    for index, entry in enumerate(entries):
        folder = tmp_path / str(index)
        folder.mkdir()
        write_json(folder / "config.json", entry["config"])
        for name, content in entry.get("sidecar", {}).items():
            if name == "gguf_metadata":
                (folder / "model.gguf").write_bytes(b"GGUF")
            else:
                write_json(folder / name, content)
        plan = explain(folder, platform=CPU)
        assert plan.level == 1
        outcomes[entry["model"]] = plan.unsupported or next(
            rule.scheme or rule.because for rule in plan.rules if rule.prefix.endswith("o_proj")
        )
    later = {m: o for m, o in outcomes.items() if o.startswith("known, not yet: dialect ")}
    assert outcomes["deepseek-ai/DeepSeek-V3"] == BLOCK
    assert outcomes["meta-llama/Llama-3.1-405B-Instruct-FP8"].startswith("fp8_e4m3[1x*] x fp8")
    for name in ("MiniMax-M3", "GLM-5.1", "DeepSeek-V3.2", "Qwen3-235B-A22B"):
        assert f"nvidia/{name}-NVFP4" not in later
    assert outcomes["Quark MXFP4 w4a4 export (exporter script)"].startswith("fp4_e2m1[1x32]:e8m0")
    assert "dialect gguf" in later["GGUF Q4_K_M (Llama style)"]
    assert outcomes["TheBloke/TinyLlama-1.1B-Chat-v1.0-GPTQ (main)"] == "int4[1x128]:act-order"
    assert outcomes["GPTQ 3-bit g128 (AutoGPTQ/GPTQModel)"] == "int3[1x128]"
    assert outcomes["converter output, GPTQ v2 asymmetric"] == "uint4[1x128]:zero"
    assert outcomes["Qwen/Qwen3-4B-AWQ"] == "uint4[1x128]:zero"
    known = ("fp8_e4m3[", "fp4_e2m1[", "int", "uint", "the checkpoint lists it", "quantized_layers")
    assert all(o.startswith(known) for m, o in outcomes.items() if m not in later)


@pytest.mark.parametrize("name", ["fp8block-128x128", "fp8tensor-d128", "fp8block-mixtral"])
def test_shared_fp8_checkpoints_have_nothing_that_loading_would_stop_at(shared, name):
    plan = explain(shared / "models" / name, platform=CPU)
    assert plan.totals.errors == 0 and plan.totals.quantized >= 35
    assert not [warning for warning in plan.warnings if "loading would stop" in warning]


def test_a_hundred_thousand_tensors_are_explained_without_torch(tmp_path):
    tensors = deepseek(layers=61, experts=271)
    assert len(tensors) > 99_000
    write_checkpoint(tmp_path / "m", {**LLAMA_CONFIG, "num_hidden_layers": 61}, tensors, shards=50)
    code = (
        "import sys, quantdock;"
        f"plan = quantdock.explain({str(tmp_path / 'm')!r}, platform={CPU!r});"
        "assert not {'torch', 'transformers', 'numpy'} & set(sys.modules);"
        "sys.stdout.write(str(plan.totals.layers))"
    )
    start = time.perf_counter()
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    sys.stdout.write(f"explain of {len(tensors):,}: {time.perf_counter() - start:.2f} s\n")
    assert int(done.stdout) == 61 * (2 + 1 + 3 * 271) + 2


def test_experts_are_counted_one_by_one(tmp_path):
    folder = write_checkpoint(tmp_path / "m", LLAMA_CONFIG, deepseek(layers=1, experts=2))
    plan = explain(folder, platform=CPU)
    experts = [layer for layer in plan.layers if layer.kind == "experts"]
    assert len(experts) == 6 and {layer.scheme for layer in experts} == {BLOCK}
    odd = deepseek(layers=1, experts=2) | block_fp8("model.layers.0.mlp.experts.1.up_proj", 64, 64)
    plan = explain(write_checkpoint(tmp_path / "n", LLAMA_CONFIG, odd), platform=CPU)
    assert by_prefix(plan)["model.layers.0.mlp.experts.1.up_proj"].n == 64


@pytest.mark.parametrize(
    ("asked", "dtype"), [("auto", "bfloat16"), ("float32", "float32"), ("fp16", "float16")]
)
def test_the_dtype_that_is_asked_for_is_planned(tmp_path, asked, dtype):
    folder = write_checkpoint(tmp_path / "m", with_block(), llama())
    assert explain(folder, platform=CPU, dtype=asked).dtype == dtype


def test_a_dtype_that_a_platform_has_not_is_refused(tmp_path):
    folder = write_checkpoint(tmp_path / "m", with_block(), llama())
    with pytest.raises(ConfigError, match="dtype=int3 cannot be used on cpu:generic"):
        explain(folder, platform=CPU, dtype="int3")


@pytest.mark.parametrize(
    ("method", "ignore", "todo"),
    [
        ("fp8", ["*"], "Load with quantization='none', or change the ignore list."),
        ("mxfp4", [], "name a method that is for such layers, such as 'mxfp4_online'."),
        ("quark_int4fp8_moe", [], "name a method that is for such layers, such as 'fp8'."),
    ],
)
def test_what_is_for_none_of_the_layers_says_what_would_be(tmp_path, method, ignore, todo):
    folder = write_checkpoint(tmp_path / "m", {"model_type": "llama"}, plain(UP, 256, 256))
    with pytest.raises(NothingQuantizedError) as caught:
        explain(folder, platform=CPU, quantization=method, ignore=ignore)
    assert caught.value.todo.endswith(todo)
