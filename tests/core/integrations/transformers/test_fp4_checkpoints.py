"""Mixtures of experts stored in fp4, by ModelOpt, Quark and others: the same weights, whole."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import load_file, save_file

import quantdock
from model_outputs import IDS, logits
from quantdock.cli.app import run as run_cli
from quantdock.errors import ConfigError, LoadError
from quantdock.layers import FusedMoE
from tests.toy_files import edit_config, edit_tensors
from tests.toy_fp4 import DEEPSEEK, fp8_blocks, is_expert, is_linear, mxfp4, mxfp8, nvfp4, rewrite
from toy_ranks import in_threads, relative

MIXTRAL = {"num_local_experts": 8, "intermediate_size": 128}
TOYS = {
    "mixtral": MIXTRAL,
    "qwen3_moe": {"num_experts_per_tok": 2, "moe_intermediate_size": 128, "num_experts": 8},
    "deepseek_v3": DEEPSEEK,
}
MODELOPT = {"quant_method": "modelopt", "quant_algo": "NVFP4", "exclude_modules": ["lm_head"]}
_GROUP = {"dtype": "fp4", "qscheme": "per_group", "group_size": 32, "scale_format": "e8m0"}
QUARK = {
    "quant_method": "quark",
    "global_quant_config": {
        "weight": _GROUP,
        "input_tensors": {**_GROUP, "is_dynamic": True},
    },
    "exclude": ["lm_head", "*.gate"],
}


def load(folder, quantization=None):
    return quantdock.load(folder, quantization, device="cpu", dtype="float32")


def everywhere(storage):
    return lambda layer: storage if is_expert(layer) or is_linear(layer) else None


@pytest.mark.parametrize("toy", TOYS)
def test_modelopts_nvfp4_gives_its_own_weights(make_toy, toy):
    """Gate and up have second scales of their own; some toys have shared experts and groups."""
    folder = make_toy(toy, **TOYS[toy])
    plain = rewrite(folder, MODELOPT, everywhere(nvfp4))
    seconds = {
        float(tensor)
        for name, tensor in load_file(folder / "model.safetensors").items()
        if is_expert(name) and name.endswith("weight_scale_2")
    }
    assert len(seconds) > 12  # no two weights share one
    expected = logits(load(plain, "none"))
    alone = load(folder, "petit_nvfp4")
    assert isinstance(alone.model.layers[1].mlp.experts, FusedMoE)
    assert (logits(alone) - expected).abs().max() < 1e-4
    assert (logits(load(folder, "none")) - expected).abs().max() < 1e-4
    model = load(folder)
    assert 0 < (logits(model) - expected).norm() / expected.norm() < 0.5  # inputs are fp4, too
    assert model.quantdock_plan.totals.errors == 0 and model.quantdock_plan.unused == ()
    assert model.generate(IDS[:, :6], max_new_tokens=4, do_sample=False).shape == (1, 10)


def test_experts_are_loaded_again_to_the_same_bits(make_toy):
    folder = make_toy("qwen3_moe", **TOYS["qwen3_moe"])
    rewrite(folder, MODELOPT, everywhere(nvfp4))
    model = load(folder)
    before = logits(model)
    for parameter in model.model.layers[1].mlp.experts.parameters():
        parameter.data.view(torch.uint8).zero_()
    quantdock.reload(model, folder)
    assert torch.equal(logits(model), before)


def test_a_scheme_for_each_layer(make_toy):
    folder = make_toy("deepseek_v3", **DEEPSEEK)
    words = {nvfp4: "NVFP4", mxfp8: "MXFP8"}

    def choose(layer):
        return nvfp4 if is_expert(layer) else mxfp8 if is_linear(layer) else None

    named = {}

    def noted(layer):
        if how := choose(layer):
            named[layer] = {"quant_algo": words[how], "group_size": 16 if how is nvfp4 else 32}
        return how

    block = {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION"}
    plain = rewrite(folder, block, noted)
    edit_config(folder, quantization_config={**block, "quantized_layers": named})
    for name in (None, "modelopt_mixed", "minimax_m3_nvfp4"):
        plan = quantdock.explain(folder, "cpu:generic", quantization=name)
        assert {layer.decision for layer in plan.layers if layer.prefix in named} == {"quantized"}
        assert not [warning for warning in plan.warnings if "loading would stop" in warning]
    expected = logits(load(plain, "none"))
    assert (logits(load(folder, "none")) - expected).abs().max() < 1e-4
    model = load(folder)
    assert 0 < (logits(model) - expected).norm() / expected.norm() < 0.5
    assert model.quantdock_plan.ignore_unmatched == ()


@pytest.mark.parametrize("toy", ["mixtral", "qwen3_moe"])
def test_quarks_mxfp4(make_toy, toy):
    folder = make_toy(toy, **TOYS[toy])
    plain = rewrite(folder, QUARK, everywhere(mxfp4))
    expected = logits(load(plain, "none"))
    assert (logits(load(folder, "none")) - expected).abs().max() < 1e-4
    model = load(folder)
    assert 0 < (logits(model) - expected).norm() / expected.norm() < 0.5
    assert torch.equal(logits(load(folder, "quark_mxfp4")), logits(model))
    edit_config(folder, quantization_config={**QUARK, "global_quant_config": {"weight": _GROUP}})
    assert (logits(load(folder)) - expected).abs().max() < 1e-4  # weights alone


@pytest.mark.parametrize(
    ("name", "method", "linear", "expert"),
    [
        ("deepseek_v4_fp8", "fp8", fp8_blocks, mxfp4),
        ("minimax_m3_nvfp4", "mxfp8", mxfp8, nvfp4),
    ],
)
def test_fp4_experts_beside_fp8_layers(make_toy, name, method, linear, expert):
    folder = make_toy("deepseek_v3", **DEEPSEEK)
    block = {"quant_method": method}
    if method == "fp8":
        block |= {"weight_block_size": [128, 128], "activation_scheme": "dynamic"}
    plain = rewrite(
        folder, block, lambda n: expert if is_expert(n) else linear if is_linear(n) else None
    )
    plan = quantdock.explain(folder, "cpu:generic", quantization=name)
    experts = {layer.scheme for layer in plan.layers if layer.kind == "experts"}
    assert len(experts) == 1 and experts.pop().startswith("fp4_e2m1")
    model = load(folder, name)
    expected = logits(load(plain, "none"))
    assert 0 < (logits(model) - expected).norm() / expected.norm() < 0.5
    assert model.quantdock_plan.unused == ()
    with pytest.raises((ConfigError, LoadError)) as caught:
        load(folder)  # the file does not say it
    assert ("are read with quantization='deepseek_v4_fp8'" in str(caught.value)) is (
        name == "deepseek_v4_fp8"
    )


def test_a_file_that_says_it_of_its_experts_needs_no_name(make_toy):
    folder = make_toy("deepseek_v3", **DEEPSEEK)
    block = {"quant_method": "fp8", "weight_block_size": [128, 128], "expert_dtype": "fp4"}
    rewrite(
        folder, block, lambda n: mxfp4 if is_expert(n) else fp8_blocks if is_linear(n) else None
    )
    model = load(folder)
    assert model.quantdock_plan.method == "deepseek_v4_fp8"
    assert "expert_dtype is 'fp4'" in model.quantdock_plan.method_source


@pytest.mark.parametrize("folder", ["gptq-mixtral-w4-g32", "gptq-qwen3moe-w4-g32"])
def test_moe_wna16_reads_what_the_file_says(shared, folder):
    path = shared / "models" / folder
    named, plain = load(path, "moe_wna16"), load(path)
    assert named.quantdock_plan.method == "moe_wna16"
    assert torch.equal(logits(named), logits(plain))


@pytest.mark.parametrize("method", ["quark_mxfp4", "quark_int4fp8_moe"])
def test_experts_are_quantized_at_load(shared, method):
    folder = shared / "models" / "bases" / "stories260k-mixtral-d128"
    plain, model = load(folder, "none"), load(folder, method)
    decisions = {layer.kind: layer.decision for layer in model.quantdock_plan.layers}
    assert decisions["experts"] == "quantized"
    assert decisions["linear"] == ("quantized" if method == "quark_mxfp4" else "unquantized")
    assert 0 < (logits(model) - logits(plain)).norm() / logits(plain).norm() < 0.5


def test_experts_of_an_fp8_file_are_quantized_again(shared):
    folder = shared / "models" / "fp8block-mixtral"
    plain, model = load(folder), load(folder, "nvfp4_online")
    schemes = {layer.kind: layer.scheme for layer in model.quantdock_plan.layers if layer.scheme}
    assert schemes["linear"].startswith("fp8_e4m3[128x128]")
    assert schemes["experts"].startswith("fp4_e2m1[1x16]")
    assert model.model.layers[0].mlp.experts.quant_method.value_steps == (
        "quantized again, from fp8_e4m3[128x128]",
    )
    assert 0 < (logits(model) - logits(plain)).norm() / logits(plain).norm() < 0.5


def test_every_command_takes_them(make_toy, capsys):
    folder = make_toy("qwen3_moe", **TOYS["qwen3_moe"])
    rewrite(folder, MODELOPT, everywhere(nvfp4))
    assert run_cli(["explain", str(folder)]) == 0
    assert "fp4_e2m1[1x16]" in capsys.readouterr().out
    assert run_cli(["doctor", str(folder)]) == 0
    capsys.readouterr()

    def damage(tensors):
        tensors["model.layers.1.mlp.experts.5.up_proj.input_scale"].zero_()
        del tensors["model.layers.0.self_attn.q_proj.weight_scale_2"]

    edit_tensors(folder, damage)
    assert run_cli(["doctor", str(folder)]) == 1
    told = " ".join(capsys.readouterr().out.split())
    assert "weight_scale_2 is missing" in told and "input scale of 0" in told


@pytest.mark.parametrize(("name", "storage"), [("petit_nvfp4", nvfp4), ("quark", mxfp4)])
def test_two_ranks_have_the_logits_of_one(make_toy, name, storage):
    """w2 is cut at columns that are whole groups; 128 features of an expert are 64 a rank."""
    folder = make_toy("qwen3_moe", **TOYS["qwen3_moe"])
    block = MODELOPT if storage is nvfp4 else {**QUARK, "global_quant_config": {"weight": _GROUP}}
    rewrite(folder, block, everywhere(storage))

    def part(group):
        model = quantdock.load(folder, name, device="cpu", dtype="float32", tp=group)
        return logits(model)

    found = in_threads(2, part)
    assert relative(found[0], logits(load(folder, name))) < 1e-5
    assert torch.equal(found[0], found[1])


def test_128_experts(make_toy):
    folder = make_toy(
        "qwen3_moe",
        num_hidden_layers=1,
        num_experts=128,
        num_experts_per_tok=8,
        moe_intermediate_size=32,
        hidden_size=64,
    )
    plain = rewrite(folder, MODELOPT, everywhere(nvfp4))
    expected = logits(load(plain, "none"))
    assert (logits(load(folder, "petit_nvfp4")) - expected).abs().max() < 1e-4
    plan = quantdock.explain(folder, "cpu:generic")
    assert sum(layer.kind == "experts" for layer in plan.layers) == 128 * 3
    model = load(folder)
    assert model.generate(IDS[:, :6], max_new_tokens=4, do_sample=False).shape == (1, 10)


NV_NAMES = {
    "weight_packed": "weight",
    "weight_global_scale": "weight_scale_2",
    "input_global_scale": "input_scale",
}


def renamed(shared, tmp_path, name, block, names):
    """Return a copy of a checkpoint of compressed-tensors under another dialect's names."""
    folder = tmp_path / name
    folder.mkdir()
    source = shared / "models" / name
    (folder / "config.json").write_bytes((source / "config.json").read_bytes())
    edit_config(folder, quantization_config=block)
    tensors = {}
    for full, tensor in load_file(source / "model.safetensors").items():
        prefix, _, last = full.rpartition(".")
        divides = last.endswith("global_scale") and last in names
        tensors[f"{prefix}.{names.get(last, last)}"] = 1 / tensor if divides else tensor
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


_AUTO = {"quant_method": "auto-round", "packing_format": "auto_round:llm_compressor", "sym": True}
_AUTO_MX = {**_AUTO, "bits": 4, "act_bits": 4, "data_type": "mx_fp", "group_size": 32}
_AUTO_NV = {**_AUTO, "bits": 4, "act_bits": 4, "data_type": "nv_fp", "group_size": 16}


@pytest.mark.parametrize(
    ("name", "block", "names"),
    [
        ("ct-nvfp4", MODELOPT, NV_NAMES),
        ("ct-nvfp4", _AUTO_NV, {}),
        ("ct-nvfp4a16", {**MODELOPT, "quant_algo": "W4A16_NVFP4"}, NV_NAMES),
        ("ct-mxfp4", QUARK, NV_NAMES),
        ("ct-mxfp4", _AUTO_MX, {}),
    ],
    ids=["modelopt", "auto-round nv", "modelopt w4a16", "quark", "auto-round mx"],
)
def test_the_same_tensors_in_other_words_are_the_same_model(shared, tmp_path, name, block, names):
    """Activations too: the logits of another library's own forward are as near."""
    golden = load_file(shared / "models" / name / "golden.safetensors")
    folder = renamed(shared, tmp_path, name, block, names)
    ours, theirs = load(folder), load(shared / "models" / name)
    with torch.no_grad():
        found, expected = (m(input_ids=golden["input_ids"]).logits for m in (ours, theirs))
    assert relative(found, expected) < 1e-5
    schemes = [{row.scheme for row in m.quantdock_plan.layers} for m in (ours, theirs)]
    assert schemes[0] == schemes[1]


def test_keys_and_values_are_kept_as_the_file_asks(make_toy):
    folder = make_toy("qwen3_moe", **TOYS["qwen3_moe"])
    rewrite(folder, {**MODELOPT, "kv_cache_quant_algo": "FP8"}, everywhere(nvfp4))

    def calibrate(tensors):
        for layer in range(2):
            for half in ("k", "v"):
                name = f"model.layers.{layer}.self_attn.{half}_proj.{half}_scale"
                tensors[name] = torch.tensor(0.05)

    edit_tensors(folder, calibrate)
    model = load(folder)
    kept = {layer.scheme for layer in model.quantdock_plan.attention}
    assert len(kept) == 1 and kept.pop().startswith("fp8_e4m3")
    assert model.quantdock_plan.unused == ()
    assert model.generate(IDS[:, :6], max_new_tokens=4, do_sample=False).shape == (1, 10)
