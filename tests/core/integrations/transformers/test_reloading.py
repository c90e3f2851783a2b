"""Reloading: other weights in place, equal to a first load, and the old ones after a failure."""

from __future__ import annotations

import json
import shutil

import pytest
import torch
from transformers import AutoModelForCausalLM

import quantdock
from model_outputs import logits
from quantdock.errors import CheckpointError, LoadError, MismatchError
from quantdock.layers import LinearBase
from toy_files import edit_tensors, write_block_checkpoint


def scaled(folder, target, factor):
    """Write ``folder`` with every matrix of its layers multiplied by ``factor``."""
    shutil.copytree(folder, target)

    def change(tensors):
        for name, tensor in tensors.items():
            if name.endswith("_proj.weight"):
                tensors[name] = tensor * factor

    edit_tensors(target, change)
    return target


@pytest.fixture
def pair(make_toy, tmp_path):
    """Return two 16-bit checkpoints of one model with different weights."""
    first = make_toy()
    return first, scaled(first, tmp_path / "other", 0.75)


def addresses(model):
    return {name: p.data_ptr() for name, p in model.named_parameters()}


def assert_follows(model, folders, expected):
    where = addresses(model)
    for folder, wanted in zip(folders, expected, strict=True):
        quantdock.reload(model, folder)
        assert torch.equal(logits(model), wanted)
        assert addresses(model) == where


@pytest.mark.parametrize("method", ["fp8_per_tensor", "fp8_per_channel", "fp8_per_block", "none"])
def test_reloads_follow_the_files_at_the_same_addresses(pair, method):
    load = {"quantization": method, "device": "cpu", "dtype": "float32"}
    wanted = [logits(quantdock.load(folder, **load)) for folder in pair]
    assert not torch.equal(*wanted)
    model = quantdock.load(pair[0], **load)
    assert_follows(model, [pair[1], pair[0], pair[1]], [wanted[1], wanted[0], wanted[1]])


def test_serialized_blocks_reload(pair, tmp_path):
    blocks = [write_block_checkpoint(f, tmp_path / f"block{i}") for i, f in enumerate(pair)]
    wanted = [logits(quantdock.load(folder, device="cpu")) for folder in blocks]
    assert_follows(quantdock.load(blocks[0], device="cpu"), blocks[::-1], wanted[::-1])


def test_stacked_experts_and_tied_heads_reload(make_toy, tmp_path):
    fields = {"num_local_experts": 4, "tie_word_embeddings": True}
    first = make_toy("mixtral", **fields)
    other = scaled(first, tmp_path / "other", 0.5)
    load = {"quantization": "fp8_per_channel", "device": "cpu"}
    wanted = logits(quantdock.load(other, **load))
    model = quantdock.load(first, **load)
    quantdock.reload(model, other)
    assert torch.equal(logits(model), wanted)
    assert model.get_output_embeddings().weight is model.get_input_embeddings().weight


def test_a_head_that_is_tied_by_its_absence_reloads(make_toy, tmp_path):
    """Where config.json does not say whether it is tied."""
    first = make_toy(tie_word_embeddings=True)
    config = json.loads((first / "config.json").read_text())
    del config["tie_word_embeddings"]
    (first / "config.json").write_text(json.dumps(config))
    other = scaled(first, tmp_path / "other", 0.5)
    wanted = logits(quantdock.load(other, "fp8_per_channel", device="cpu"))
    model = quantdock.load(first, "fp8_per_channel", device="cpu")
    assert_follows(model, [other], [wanted])


def test_two_tensors_for_a_tied_one_are_refused(make_toy, tmp_path):
    first = make_toy(tie_word_embeddings=True)
    model = quantdock.load(first, "fp8", device="cpu")
    before = logits(model)
    for factor in (1, 2):
        other = scaled(first, tmp_path / f"other{factor}", 0.5)

        def store_head(tensors, factor=factor):
            tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"] * factor

        edit_tensors(other, store_head)
        if factor == 1:
            quantdock.reload(model, other)
            assert not torch.equal(logits(model), before)
            quantdock.reload(model, first)
        else:
            with pytest.raises(MismatchError, match=r"lm_head\.weight and .*, which differ"):
                quantdock.reload(model, other)
        assert torch.equal(logits(model), before)


def test_a_truncated_file_leaves_the_old_weights(pair, tmp_path):
    model = quantdock.load(pair[0], quantization="fp8", device="cpu")
    before = logits(model)
    broken = shutil.copytree(pair[1], tmp_path / "broken") / "model.safetensors"
    broken.write_bytes(broken.read_bytes()[:-100])
    with pytest.raises(CheckpointError):
        quantdock.reload(model, broken.parent)
    assert torch.equal(logits(model), before)


def test_missing_and_misshapen_tensors_are_all_found_before_anything_is_written(pair, tmp_path):
    model = quantdock.load(pair[0], quantization="fp8", device="cpu")
    before = logits(model)
    broken = shutil.copytree(pair[1], tmp_path / "broken")

    def damage(tensors):
        tensors.pop("model.layers.1.mlp.up_proj.weight")
        tensors["model.norm.weight"] = torch.ones(3)
        name = "model.layers.0.mlp.up_proj.weight"
        tensors[name] = tensors[name][:7].clone()

    edit_tensors(broken, damage)
    with pytest.raises(LoadError) as caught:
        quantdock.reload(model, broken)
    text = str(caught.value)
    assert "The model keeps the weights it had." in text
    assert "model.layers.1.mlp.up_proj: weight is missing" in text
    assert "model.norm.weight is [3], the model has [256]" in text
    assert "model.layers.0.mlp.up_proj: weight is [7, 256], not [512, 256]" in text
    assert torch.equal(logits(model), before)


def test_a_kernel_that_cannot_prepare_a_layer_leaves_all_layers(pair, monkeypatch):
    model = quantdock.load(pair[0], quantization="fp8", device="cpu")
    before = logits(model)
    layer = model.get_submodule("model.layers.1.mlp.up_proj")

    def fail(weight):
        raise LoadError("planted")

    monkeypatch.setattr(layer.quant_method.kernel, "prepare", fail)
    with pytest.raises(LoadError, match="planted"):
        quantdock.reload(model, pair[1])
    assert torch.equal(logits(model), before)
    monkeypatch.undo()
    quantdock.reload(model, pair[0])
    assert torch.equal(logits(model), before)


def test_another_scheme_is_refused(pair, tmp_path):
    block = write_block_checkpoint(pair[0], tmp_path / "block")
    model = quantdock.load(pair[0], device="cpu")
    with pytest.raises(MismatchError, match="another scheme"):
        quantdock.reload(model, block)


def test_a_model_of_another_maker_is_refused(pair):
    model = AutoModelForCausalLM.from_pretrained(pair[0])
    with pytest.raises(MismatchError, match=r"quantdock\.load"):
        quantdock.reload(model, pair[1])


def test_restoring_gives_the_canonical_weight_back(pair):
    model = quantdock.load(pair[0], quantization="fp8_per_block", device="cpu")
    for module in model.modules():
        if isinstance(module, LinearBase):
            weight = module.quant_method.restore(module)
            prepared = module.quant_method.kernel.prepare(weight)
            for name, tensor in prepared.items():
                now = module._parameters[name]
                assert torch.equal(now.view(torch.uint8), tensor.view(torch.uint8))
