"""Converted checkpoints: bit for bit what loading would quantize, and the same to other readers."""

from __future__ import annotations

import json
import logging

import pytest
import torch
import transformers
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

import quantdock
from model_outputs import logits
from toy_files import edit_config

torch.set_num_threads(1)

TO = ("fp8_per_tensor", "fp8_per_channel", "fp8_per_block", "mxfp8")
# transformers warns that the file's block counts, which is what is wanted.
foreign = pytest.mark.filterwarnings("ignore:You passed `quantization_config`")


def load(folder, quantization=None, dtype="float32"):
    return quantdock.load(folder, quantization, device="cpu", dtype=dtype)


def load_elsewhere(folder, dtype=torch.float32, dequantize=True):
    """Return the model as transformers loads it, through compressed-tensors where that is asked."""
    block = json.loads((folder / "config.json").read_text())["quantization_config"]
    kind = transformers.FineGrainedFP8Config
    if block["quant_method"] == "compressed-tensors":
        pytest.importorskip("compressed_tensors", reason="needs the package compressed-tensors")
        kind = transformers.CompressedTensorsConfig
    options = {"quantization_config": kind(dequantize=True)} if dequantize else {}
    return AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, **options).eval()


@pytest.mark.parametrize("to", TO)
def test_it_runs_as_if_it_were_quantized_while_loading(make_toy, tmp_path, to):
    folder = make_toy("qwen2", tie_word_embeddings=True)
    target = quantdock.convert_checkpoint(folder, tmp_path / "out", to).target
    model = load(target)
    assert torch.equal(logits(model), logits(load(folder, to)))
    assert model.get_output_embeddings().weight is model.get_input_embeddings().weight
    assert model.quantdock_plan.notes == model.quantdock_plan.ignore_unmatched == ()
    assert model.quantdock_plan.unused == ()


@foreign
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("to", TO)
def test_other_readers_see_the_same_weights_and_logits(make_toy, tmp_path, to, dtype):
    target = quantdock.convert_checkpoint(make_toy(), tmp_path / "out", to).target
    ours = load(target, "none", dtype)
    theirs = load_elsewhere(target, getattr(torch, dtype))
    for name, parameter in ours.named_parameters():
        other = theirs.get_parameter(name)
        assert parameter.dtype == other.dtype and torch.equal(parameter, other), name
    assert torch.equal(logits(ours), logits(theirs))


@foreign
def test_compressed_tensors_reads_a_mixture_layer_by_layer(make_toy, tmp_path):
    pytest.importorskip("compressed_tensors", reason="needs the package compressed-tensors")
    choices = {"*.o_proj": "fp8_per_block", "*.q_proj": "fp8_per_tensor", "*.up_proj": "none"}
    target = quantdock.convert_checkpoint(
        make_toy(), tmp_path / "out", "fp8_per_channel", choices=choices
    ).target
    ours, theirs = load(target, "none"), load_elsewhere(target, dequantize=False)
    logits(theirs)  # compressed-tensors decodes weights when they are first used
    for name in ("self_attn.o_proj", "self_attn.q_proj", "mlp.up_proj", "mlp.down_proj"):
        weight = theirs.get_parameter(f"model.layers.1.{name}.weight")
        assert torch.equal(ours.get_parameter(f"model.layers.1.{name}.weight"), weight)


@foreign
@pytest.mark.parametrize("to", TO)
def test_a_trained_model_keeps_its_logits(shared, tmp_path, to):
    folder = shared / "models" / "bases" / "stories260k-d128"
    target = quantdock.convert_checkpoint(folder, tmp_path / "out", to).target
    expected = load_file(shared / "models" / "ct-mxfp8" / "golden.safetensors")
    with torch.no_grad():
        ours, theirs = (
            model(input_ids=expected["input_ids"]).logits
            for model in (load(target, "none"), load_elsewhere(target))
        )
    assert torch.equal(ours, theirs)


def test_codes_and_scales_are_those_that_another_tool_wrote(shared, tmp_path):
    folder = shared / "models" / "bases" / "stories260k-d128"
    target = quantdock.convert_checkpoint(folder, tmp_path / "out", "fp8_per_tensor").target
    ours = load_file(target / "model.safetensors")
    theirs = load_file(shared / "models" / "ct-fp8-static" / "model.safetensors")
    stored = [name for name in ours if "_proj.weight" in name]
    assert len(stored) == 5 * 7 * 2
    for name in stored:
        assert ours[name].dtype == theirs[name].dtype and ours[name].shape == theirs[name].shape
        assert torch.equal(ours[name].view(torch.uint8), theirs[name].view(torch.uint8)), name


def test_what_is_decoded_is_what_decoding_at_load_gives(make_toy, tmp_path):
    block = quantdock.convert_checkpoint(make_toy(), tmp_path / "block", "fp8_per_block").target
    plain = quantdock.convert_checkpoint(block, tmp_path / "plain", "none").target
    assert torch.equal(logits(load(plain)), logits(load(block, "none", "bfloat16").float()))
    model = AutoModelForCausalLM.from_pretrained(plain, dtype=torch.float32).eval()
    assert torch.equal(logits(model), logits(load(plain)))


def test_matrices_of_other_layers_are_left_alone(tmp_path):
    """GPT-2 keeps transposed matrices under the names that linear layers have elsewhere."""
    config = transformers.GPT2Config(
        n_embd=128, n_layer=1, n_head=2, vocab_size=320, n_positions=64
    )
    AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).save_pretrained(tmp_path / "in")
    with pytest.raises(quantdock.QuantDockError, match="no layer of"):
        quantdock.convert_checkpoint(tmp_path / "in", tmp_path / "out", "mxfp8")


def test_a_model_that_transformers_does_not_know_goes_by_names(make_toy, tmp_path, caplog):
    folder = make_toy()
    edit_config(folder, model_type="novel", architectures=["NovelForCausalLM"])
    with caplog.at_level(logging.WARNING):
        report = quantdock.convert_checkpoint(folder, tmp_path / "out", "fp8_per_tensor")
    assert (report.num_layers, report.notes[0]) == (
        14,
        "which layers are linear was told by the names of their tensors alone",
    )
    assert "Linear layers are told by the names" in caplog.text


def test_a_mixture_keeps_its_router_and_experts(shared, tmp_path):
    folder = shared / "models" / "bases" / "stories260k-mixtral-d128"
    report = quantdock.convert_checkpoint(folder, tmp_path / "out", "fp8_per_channel")
    before = load_file(folder / "model.safetensors")
    after = load_file(report.target / "model.safetensors")
    changed = [name for name in before if before[name].dtype != after[name].dtype]
    assert len(changed) == 4 * 5 and all("self_attn" in name for name in changed)
    assert report.notes[0].startswith("experts are copied, not quantized: ")
    story = load_file(shared / "models" / "ct-mxfp8" / "golden.safetensors")["input_ids"]
    with torch.no_grad():
        ours = load(report.target)(input_ids=story).logits
        alike = {"ignore": ["experts"], "device": "cpu", "dtype": "float32"}
        online = quantdock.load(folder, "fp8_per_channel", **alike)(input_ids=story).logits
    assert torch.equal(ours, online)
