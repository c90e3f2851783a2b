"""Integer checkpoints of llm-compressor: exact weights, logits and text, saved and reloaded."""

from __future__ import annotations

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

import quantdock
from model_outputs import kl, logits
from quantdock.errors import ConfigError, LoadError
from toy_files import edit_config, edit_tensors
from toy_ranks import in_threads

torch.set_num_threads(1)

W4A16, ASYM, W8A8 = "int4[1x128]", "uint4[1x128]:zero", "int8[1x*] x int8[1x*]:dynamic"
SCHEMES = {
    "ct-w4a16-g128": W4A16,
    "ct-w4a16-asym-g128": ASYM,
    "ct-w4a16-asym-g128-zerorows": ASYM,
    "ct-w8a8-int8": W8A8,
}
EXPERTS = {"ct-mixtral-w4a16": W4A16, "ct-qwen3moe-w8a8": W8A8}


def load(folder, quantization=None, **options):
    return quantdock.load(folder, quantization, device="cpu", dtype="float32", **options)


@pytest.mark.parametrize("name", SCHEMES)
def test_weights_are_bit_exact_and_logits_those_of_the_library(shared, name):
    folder = shared / "models" / name
    expected = load_file(folder / "golden.safetensors")
    plain, running = load(folder, "none"), load(folder)
    for key in [key for key in expected if key.startswith("dequant.")]:
        layer = key.removeprefix("dequant.").removesuffix(".weight")
        assert torch.equal(plain.get_submodule(layer).weight, expected[key])
        linear = running.get_submodule(layer)
        restored = linear.quant_method.restore(linear).dequantize()
        assert torch.equal(restored, expected[key])
    decoded = logits(plain, expected["input_ids"])
    assert (decoded - expected["logits_dequant"]).abs().max() < 1e-4
    ours = logits(running, expected["input_ids"])
    schemes = {layer.scheme for layer in running.quantdock_plan.layers} - {None}
    assert schemes == {SCHEMES[name]}
    if SCHEMES[name] == W8A8:  # the library quantizes activations, a scale of theirs is / 127.5
        assert 0 < kl(expected["logits_dequant"], ours).max() < 0.005
        assert kl(expected["logits_tool"], ours).max() < 0.01
    else:
        assert (ours - expected["logits_dequant"]).abs().max() < 1e-4


@pytest.mark.parametrize("name", EXPERTS)
def test_mixtures_have_a_plan(shared, name):
    plan = quantdock.explain(shared / "models" / name, platform="cpu:generic")
    assert plan.totals.errors == 0
    assert {layer.scheme for layer in plan.layers} - {None} == {EXPERTS[name]}
    assert not [warning for warning in plan.warnings if "loading would stop" in warning]


@pytest.mark.parametrize("name", EXPERTS)
def test_mixtures_are_decoded_bit_for_bit(shared, name):
    """The files name Mixtral's experts as llm-compressor does: gate_proj, up_proj, down_proj."""
    folder = shared / "models" / name
    expected = load_file(folder / "golden.safetensors")
    model = load(folder, "none")
    ours = logits(model, expected["input_ids"])
    assert (ours - expected["logits_dequant"]).abs().max() < 1e-4
    experts = model.get_submodule("model.layers.0.mlp.experts")
    last = [key for key in expected if ".experts." in key and ("w2" in key or "down" in key)]
    assert len(last) == 2
    for key in last:
        number = int(key.split(".experts.")[1].split(".")[0])
        assert torch.equal(experts.down_proj[number], expected[key])


@pytest.mark.parametrize("name", EXPERTS)
def test_mixtures_run_quantized(shared, name):
    folder = shared / "models" / name
    expected = load_file(folder / "golden.safetensors")
    model = load(folder)
    experts = [layer for layer in model.quantdock_plan.layers if layer.kind == "experts"]
    assert {layer.scheme for layer in experts} == {EXPERTS[name]}
    ours = logits(model, expected["input_ids"])
    if EXPERTS[name] == W4A16:
        assert (ours - expected["logits_dequant"]).abs().max() < 1e-4
    else:
        assert kl(expected["logits_dequant"], ours).max() < 0.02


@pytest.mark.parametrize("name", ["ct-w4a16-asym-g128", "ct-w8a8-int8"])
def test_two_ranks_compute_what_one_does(shared, name):
    """Inputs of a divided layer are quantized by each rank, so int8 agrees within its rounding."""
    folder = shared / "models" / name
    ids = load_file(folder / "golden.safetensors")["input_ids"]
    one = logits(load(folder), ids)
    first, second = in_threads(2, lambda group: logits(load(folder, tp=group), ids))
    assert torch.equal(first, second)
    if SCHEMES[name] == W8A8:
        assert kl(one, first).max() < 0.005
    else:
        assert (first - one).abs().max() < 1e-4


def test_generation_goes_on_as_the_tools_prompt_does(shared):
    folder = shared / "models" / "ct-w4a16-g128"
    ids = load_file(folder / "golden.safetensors")["input_ids"]
    made = load(folder).generate(ids[:, :8], max_new_tokens=16, do_sample=False)
    assert (made[0, :24] == ids[0, :24]).float().mean() > 0.9


@pytest.fixture
def copied(shared, tmp_path):
    """Return a copy of the W4A16 checkpoint, and a function that changes its tensors."""
    folder = tmp_path / "copied"
    shutil.copytree(shared / "models" / "ct-w4a16-asym-g128", folder)
    for file in folder.iterdir():
        file.chmod(0o644)

    def change(**changes):
        tensors = load_file(folder / "model.safetensors")
        for part, made in changes.items():
            name = f"model.layers.1.mlp.up_proj.{part}"
            new = made(tensors.pop(name))
            if new is not None:
                tensors[name] = new.contiguous()
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        return folder

    return change


@pytest.mark.parametrize(
    ("part", "made", "message"),
    [
        ("weight_scale", lambda t: None, "weight_scale is missing"),
        ("weight_zero_point", lambda t: None, "weight_zero_point is missing"),
        ("weight_shape", lambda t: None, "weight_shape is missing"),
        ("weight_zero_point", lambda t: t[:5], r"weight_zero_point is \[5, 1\], not \[32, 1\]"),
        ("weight_scale", lambda t: t[:9], r"weight_scale is \[9, 1\], not \[256, 1\]"),
        ("weight_packed", lambda t: t.to(torch.int16), "weight_packed is int16, not int32"),
        ("weight_packed", lambda t: t[:, :8], r"weight_packed is \[256, 8\], not \[256, 16\]"),
    ],
)
def test_a_damaged_header_stops_before_anything_is_loaded(copied, part, made, message):
    with pytest.raises(ConfigError, match=rf"model\.layers\.1\.mlp\.up_proj[\s\S]*{message}"):
        load(copied(**{part: made}))
    plan = quantdock.explain(copied())
    assert plan.totals.errors == 1


def test_values_that_contradict_stop_the_load(copied):
    folder = copied(weight_shape=lambda t: t + torch.tensor([0, 8]))
    with pytest.raises(LoadError, match=r"up_proj\.weight_shape[\s\S]*it says \[256, 136\]"):
        load(folder)


def test_rows_of_words_have_the_width_that_the_file_states(tmp_path):
    """11 columns of 4 bits take two words, which could hold 16."""
    tensors = {
        "model.layers.0.mlp.up_proj.weight_packed": torch.zeros(8, 2, dtype=torch.int32),
        "model.layers.0.mlp.up_proj.weight_shape": torch.tensor([8, 11]),
        "model.layers.0.mlp.up_proj.weight_scale": torch.ones(8, 1),
    }
    save_file(tensors, tmp_path / "model.safetensors")
    weights = {"num_bits": 4, "type": "int", "strategy": "channel"}
    block = {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}},
    }
    config = {"model_type": "llama", "quantization_config": block}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (layer,) = quantdock.explain(tmp_path, platform="cpu:generic").layers
    assert (layer.n, layer.k, layer.scheme) == (8, 11, "int4[1x*]")


def test_ranges_of_asymmetric_inputs_that_differ_are_merged(shared, tmp_path):
    folder = tmp_path / "static"
    shutil.copytree(shared / "models" / "ct-w8a8-int8", folder)
    for path in (folder, *folder.iterdir()):
        path.chmod(0o755 if path.is_dir() else 0o644)
    block = json.loads((folder / "config.json").read_text())["quantization_config"]
    static = {"num_bits": 8, "type": "int", "strategy": "tensor", "symmetric": False}
    block["config_groups"]["group_0"]["input_activations"] = static
    edit_config(folder, quantization_config=block)

    def add(tensors):
        for name in [name for name in tensors if name.endswith(".weight_scale")]:
            stem = name.removesuffix("weight_scale")
            moved = "layers.2.self_attn.v_proj" in name
            tensors[f"{stem}input_scale"] = torch.tensor([0.05])
            tensors[f"{stem}input_zero_point"] = torch.tensor([9 * moved], dtype=torch.int8)

    edit_tensors(folder, add)
    warnings = load(folder, merge=True).quantdock_plan.warnings
    (text,) = [text for text in warnings if "of 3 shards differ" in text]
    assert "input ranges of 3 shards differ, with scales from 0.05 to 0.05" in text
    assert "one range that holds all of theirs is used" in text
