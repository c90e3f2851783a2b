"""``save_pretrained`` of loaded models: loaded again, the same logits; or refused."""

from __future__ import annotations

import copy
import io
import json

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

import quantdock
from model_outputs import logits
from quantdock.errors import SaveError
from quantdock.methods.quantized import QuantizedLinearMethod
from toy_files import edit_config, edit_tensors

torch.set_num_threads(1)

STORED = (
    "fp8block-128x128",
    "fp8tensor-d128",
    "ct-fp8-static",
    "ct-fp8-dynamic-zerorows",
    "ct-mxfp8",
)


def load(folder, quantization=None, **options):
    return quantdock.load(folder, quantization, device="cpu", **options)


def saved(model, folder, **options):
    model.save_pretrained(folder, **options)
    return load(folder)


@pytest.mark.parametrize("model_type", ["llama", "qwen2", "gemma3_text", "phi3"])
@pytest.mark.parametrize("to", ["fp8_per_tensor", "fp8_per_channel", "fp8_per_block", "mxfp8"])
def test_what_was_quantized_at_load_is_saved_quantized(make_toy, tmp_path, to, model_type):
    model = load(make_toy(model_type), to)
    again = saved(model, tmp_path / "out")
    assert torch.equal(logits(again), logits(model))
    before, after = (
        {layer.prefix: layer.scheme for layer in m.quantdock_plan.layers} for m in (model, again)
    )
    assert before == after
    assert again.quantdock_plan.unused == again.quantdock_plan.ignore_unmatched == ()


@pytest.mark.parametrize("to", ["fp8_per_channel", "fp8_per_block"])
def test_saving_and_converting_write_the_same(make_toy, tmp_path, to):
    folder = make_toy()
    load(folder, to).save_pretrained(tmp_path / "saved")
    quantdock.convert_checkpoint(folder, tmp_path / "converted", to)
    files = [load_file(tmp_path / name / "model.safetensors") for name in ("saved", "converted")]
    assert files[0].keys() == files[1].keys()
    for name, tensor in files[0].items():
        assert torch.equal(tensor.view(torch.uint8), files[1][name].view(torch.uint8)), name
    blocks = [
        json.loads((tmp_path / name / "config.json").read_text())["quantization_config"]
        for name in ("saved", "converted")
    ]
    assert blocks[0] == blocks[1]


@pytest.mark.parametrize("name", STORED)
def test_checkpoints_of_other_tools_are_saved_as_they_mean(shared, tmp_path, name):
    model = load(shared / "models" / name)
    assert torch.equal(logits(saved(model, tmp_path / "out")), logits(model))


def test_mixtures_shards_and_ties_survive(make_toy, tmp_path):
    choices = {"*.o_proj": "fp8_per_block", "*.q_proj": "mxfp8", "*.up_proj": "none"}
    model = load(make_toy(tie_word_embeddings=True), "fp8_per_channel", choices=choices)
    again = saved(model, tmp_path / "out", max_shard_size="300KB")
    assert len(list((tmp_path / "out").glob("*.safetensors"))) > 2
    assert torch.equal(logits(again), logits(model))
    assert again.get_output_embeddings().weight is again.get_input_embeddings().weight


def test_a_model_of_experts_is_saved_under_its_files_names(shared, tmp_path):
    folder = shared / "models" / "bases" / "stories260k-mixtral-d128"
    model = load(folder, "fp8_per_tensor")
    again = saved(model, tmp_path / "out")
    assert torch.equal(logits(again), logits(model))
    names = load_file(folder / "model.safetensors").keys()
    assert names <= load_file(tmp_path / "out" / "model.safetensors").keys()


def test_the_loaded_model_stays_as_it_is(make_toy, tmp_path):
    model = load(make_toy(), "fp8_per_channel")
    before = {name: p.data_ptr() for name, p in model.named_parameters()}
    model.save_pretrained(tmp_path / "out")
    assert {name: p.data_ptr() for name, p in model.named_parameters()} == before
    assert not hasattr(model.config, "quantization_config")


def test_value_steps_are_never_saved(make_toy, tmp_path):
    model = load(make_toy(), "fp8_per_channel")
    method = model.get_submodule("model.layers.1.mlp.up_proj").quant_method
    assert isinstance(method, QuantizedLinearMethod)
    method.value_steps = ("requantized 2 shards to the max of their scales",)
    with pytest.raises(SaveError, match=r"model\.layers\.1\.mlp\.up_proj[\s\S]*requantized"):
        model.save_pretrained(tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_scales_of_keys_and_values_are_never_lost(make_toy, tmp_path):
    folder = quantdock.convert_checkpoint(make_toy(), tmp_path / "in", "fp8_per_channel").target
    block = json.loads((folder / "config.json").read_text())["quantization_config"]
    scheme = {"num_bits": 8, "type": "float", "strategy": "tensor", "symmetric": True}
    edit_config(folder, quantization_config={**block, "kv_cache_scheme": scheme})
    scales = {
        f"model.layers.{i}.self_attn.{kind}_scale": torch.tensor([0.5])
        for i in range(2)
        for kind in "kv"
    }
    edit_tensors(folder, lambda tensors: tensors.update(scales))
    with pytest.raises(SaveError, match="keys and values") as caught:
        load(folder).save_pretrained(tmp_path / "out")
    assert "kv_cache='none'" in caught.value.todo
    plain = load(folder, kv_cache="none")
    assert torch.equal(logits(saved(plain, tmp_path / "out")), logits(plain))


def test_other_tensors_than_the_models_are_refused(make_toy, tmp_path):
    with pytest.raises(SaveError, match="saved from its own tensors"):
        load(make_toy(), "fp8_per_channel").save_pretrained(tmp_path / "out", state_dict={"a": 1})


def test_a_model_without_quantized_layers_is_saved_by_transformers(make_toy, tmp_path):
    model = load(make_toy(), dtype="float32")
    model.save_pretrained(tmp_path / "out")
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.float32)
    assert torch.equal(logits(again.eval()), logits(model))


def pickled(model):
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@pytest.mark.parametrize("copied", [copy.deepcopy, pickled], ids=["deepcopy", "pickle"])
@pytest.mark.parametrize("options", [{}, {"kv_cache": "int8", "merge": True}])
def test_a_copy_of_a_model_is_one_of_its_own(make_toy, tmp_path, copied, options):
    """It saves its own weights, and prepares its own caches."""
    model = load(make_toy(), "fp8_per_block", **options)
    before = logits(model)
    other = copied(model)
    assert torch.equal(logits(other), before)
    with torch.no_grad():
        other.model.norm.weight.mul_(2)
    again = saved(other, tmp_path / "other")
    assert torch.equal(again.model.norm.weight, other.model.norm.weight)
    assert not torch.equal(again.model.norm.weight, model.model.norm.weight)
    assert torch.equal(logits(model), before)
    other.quantdock_kv_cache = None  # were it the first one's, this would not matter
    ids = torch.tensor([[1, 2, 3]])
    if options:
        with pytest.raises(AttributeError, match="'NoneType'"):
            other.generate(ids, max_new_tokens=2, do_sample=False)
    model.generate(ids, max_new_tokens=2, do_sample=False)
