"""``save_pretrained`` of integer models: the dialect they came in, every weight bit for bit."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file

import quantdock
from model_outputs import logits
from quantdock.errors import SaveError

torch.set_num_threads(1)

STORED = {
    "gptq-w4-g64-desc": "gptq",
    "gptq-w4-g32-asym-v2": "gptq",
    "gptq-w4-g64-asym-v1": "gptq",
    "gptq-w8-g128": "gptq",
    "awq-w4-g32": "awq",
    "awq-autoawq-g128-clip": "awq",
    "ct-w4a16-g128": "compressed-tensors",
    "ct-w4a16-asym-g128-zerorows": "compressed-tensors",
    "ct-w8a8-int8": "compressed-tensors",
}


def load(folder, quantization=None, **options):
    return quantdock.load(folder, quantization, device="cpu", **options)


@pytest.mark.parametrize("name", STORED)
def test_checkpoints_of_other_tools_are_saved_in_their_dialect(shared, tmp_path, name):
    folder = shared / "models" / name
    model = load(folder)
    model.save_pretrained(tmp_path / "out")
    again = load(tmp_path / "out")
    assert torch.equal(logits(again), logits(model))
    block = json.loads((tmp_path / "out" / "config.json").read_text())["quantization_config"]
    assert block["quant_method"] == STORED[name]
    before, after = (load(f, "none", dtype="float32") for f in (folder, tmp_path / "out"))
    for key, weight in before.named_parameters():
        assert torch.equal(weight, after.get_parameter(key)), key


@pytest.mark.parametrize(
    ("to", "options"),
    [
        ("gptq", {}),
        ("gptq", {"bits": 3, "group_size": 32, "symmetric": False}),
        ("awq", {"group_size": 64}),
        ("w4a16", {"symmetric": False}),
        ("w8a16", {}),
        ("w8a8", {"symmetric": False}),
        ("w8a8_int8", {}),
    ],
)
def test_saving_gives_back_the_files_it_was_loaded_from(make_toy, tmp_path, to, options):
    choices = {"*.layers.1.mlp.up_proj": "none"}
    converted = quantdock.convert_checkpoint(
        make_toy(), tmp_path / "in", to, choices=choices, **options
    ).target
    load(converted).save_pretrained(tmp_path / "out")
    files = [load_file(f / "model.safetensors") for f in (converted, tmp_path / "out")]
    assert files[0].keys() == files[1].keys()
    for name, tensor in files[0].items():
        other = files[1][name]
        assert tensor.dtype == other.dtype and torch.equal(tensor, other), name
    blocks = [
        json.loads((f / "config.json").read_text())["quantization_config"]
        for f in (converted, tmp_path / "out")
    ]
    for block in blocks:  # the file's order of layers, or the model's
        for key in {"ignore", "modules_to_not_convert"} & block.keys():
            block[key].sort()
    assert blocks[0] == blocks[1]


def test_merged_layers_are_saved_apart(shared, tmp_path):
    folder = shared / "models" / "awq-w4-g32"
    model = load(folder, merge=True)
    model.save_pretrained(tmp_path / "out")
    before, after = (load_file(f / "model.safetensors") for f in (folder, tmp_path / "out"))
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_multipliers_of_the_input_have_no_place(shared, tmp_path):
    model = load(shared / "models" / "modelopt-int4-awq")
    with pytest.raises(SaveError, match="No checkpoint format can hold") as caught:
        model.save_pretrained(tmp_path / "out")
    assert "its inputs are multiplied first, by a number for each column" in str(caught.value)


@pytest.mark.parametrize(
    "name", ["gptq-mixtral-w4-g32", "gptq-qwen3moe-w4-g32", "ct-mixtral-w4a16", "ct-qwen3moe-w8a8"]
)
def test_experts_are_saved_one_by_one_as_they_came(shared, tmp_path, name):
    folder = shared / "models" / name
    model = load(folder)
    model.save_pretrained(tmp_path / "out")
    before, after = (load_file(f / "model.safetensors") for f in (folder, tmp_path / "out"))
    if name == "gptq-mixtral-w4-g32":  # transformers has the only name for this part of Mixtral
        before = {key.replace(".mlp.", ".block_sparse_moe."): t for key, t in before.items()}
    assert {key for key in before if "experts" in key} == {key for key in after if "experts" in key}
    codes = [key for key in before if key.endswith(("qweight", "weight_packed", "_proj.weight"))]
    assert any("experts" in key for key in codes)
    assert all(torch.equal(before[key], after[key]) for key in codes)
    again = load(tmp_path / "out")
    assert torch.equal(logits(again), logits(model))
    assert again.quantdock_plan.unused == ()
