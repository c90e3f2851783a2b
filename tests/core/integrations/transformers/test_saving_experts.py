"""``save_pretrained`` of mixtures: every expert by its name, and loaded again the same bits."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import load_file

import quantdock
from model_outputs import logits
from quantdock.layers import FusedMoE
from tests.core.integrations.transformers.test_expert_models import MODELS, SMALL
from tests.core.integrations.transformers.test_expert_storage import QWEN, stack

METHODS = ("fp8_per_tensor", "fp8_per_channel", "fp8_per_block", "mxfp8", "w8a8_int8")


def load(folder, quantization=None, **options):
    return quantdock.load(folder, quantization, device="cpu", **options)


def parameters(model) -> dict[str, torch.Tensor]:
    found = [(n, m) for n, m in model.named_modules() if isinstance(m, FusedMoE)]
    return {f"{n}.{name}": p for n, m in found for name, p in m.named_parameters()}


def assert_equal_bits(one, other) -> None:
    a, b = parameters(one), parameters(other)
    assert a.keys() == b.keys() and a
    for name, tensor in a.items():
        assert torch.equal(tensor.view(torch.uint8), b[name].view(torch.uint8)), name


@pytest.mark.parametrize("model_type", MODELS)
@pytest.mark.parametrize("method", METHODS)
def test_what_was_quantized_at_load(make_toy, tmp_path, model_type, method):
    folder = make_toy(model_type, **{**SMALL, **MODELS[model_type]})
    model = load(folder, method)
    model.save_pretrained(tmp_path / "out")
    again = load(tmp_path / "out")
    assert torch.equal(logits(again), logits(model))
    assert_equal_bits(again, model)
    assert again.quantdock_plan.unused == again.quantdock_plan.ignore_unmatched == ()


def test_stacked_experts_are_saved_one_by_one(make_toy, tmp_path):
    folder = make_toy("qwen3_moe", **QWEN)
    stack(folder)
    model = load(folder, "fp8_per_block")
    model.save_pretrained(tmp_path / "out")
    names = load_file(tmp_path / "out" / "model.safetensors").keys()
    assert "model.layers.1.mlp.experts.3.up_proj.weight" in names
    again = load(tmp_path / "out")
    assert torch.equal(logits(again), logits(model))
    assert_equal_bits(again, model)


@pytest.mark.parametrize(
    "name", ["fp8block-mixtral", "ct-mixtral-fp8-dynamic", "ct-mixtral-w4a16", "ct-qwen3moe-w8a8"]
)
def test_checkpoints_of_other_tools(shared, tmp_path, name):
    model = load(shared / "models" / name)
    model.save_pretrained(tmp_path / "out")
    again = load(tmp_path / "out")
    assert torch.equal(logits(again), logits(model))
    assert_equal_bits(again, model)


@pytest.mark.parametrize("method", ["fp8_per_channel", "fp8_per_block", "w8a8_int8"])
def test_biases_stay_stacked_as_files_have_them(shared, tmp_path, method):
    """gpt-oss: gate and up are interleaved, and saved in one matrix an expert."""
    model = load(shared / "models" / "bases" / "gptoss-random", method)
    model.save_pretrained(tmp_path / "out")
    names = load_file(tmp_path / "out" / "model.safetensors").keys()
    stem = "model.layers.1.mlp.experts"
    assert {f"{stem}.gate_up_proj_bias", f"{stem}.2.gate_up_proj.weight"} <= names
    again = load(tmp_path / "out")
    assert torch.equal(logits(again), logits(model))
    assert_equal_bits(again, model)
    assert again.quantdock_plan.unused == ()
