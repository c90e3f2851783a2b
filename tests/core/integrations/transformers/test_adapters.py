"""Adapters on loaded models: what ``.weight`` answers, and gradients of a training step."""

from __future__ import annotations

import shutil

import pytest
import torch
import torch.nn.functional as F

import quantdock
from quantdock.layers import LinearBase, MergedStore, MergedView
from toy_files import edit_config, edit_tensors
from toy_gptq import packed

IDS = torch.arange(3, 40)[None]
# Model, dtype of activations, and the kernel that runs its layers.
MODELS = [
    ("gptq-w4-g64-desc", "bfloat16", "int4"),
    ("gptq-w8-g128", "bfloat16", ""),
    ("ct-w8a8-int8", "bfloat16", "int8"),
    ("modelopt-int8-wo", "bfloat16", "int8"),
    ("ct-fp8-static", "float32", "reference"),
    ("fp8block-128x128", "bfloat16", "reference"),
]


def load(folder, **options):
    return quantdock.load(folder, device="cpu", **options)


def quantized(model):
    return {n: m for n, m in model.named_modules() if isinstance(m, LinearBase | MergedView)}


@pytest.mark.parametrize("merge", [False, True])
@pytest.mark.parametrize("name", ["gptq-w4-g64-desc", "awq-w4-g32", "ct-w8a8-int8"])
def test_every_layer_answers_weight_with_codes_and_no_copy(shared, name, merge):
    model = load(shared / "models" / name, dtype="bfloat16", merge=merge)
    for module in quantized(model).values():
        store = module.store if isinstance(module, MergedView) else module
        assert isinstance(store, LinearBase | MergedStore)
        weight = module.weight
        assert weight.device.type == "cpu" and weight.dtype in (torch.uint8, torch.int8)
        assert store.weight is store._parameters[store.quant_method.main_name]
        inside = store.weight.untyped_storage().data_ptr()
        assert weight.untyped_storage().data_ptr() == inside, "a view"


def with_gradient_of_dense(layer, x):
    """Return the layer's own result, with the gradient of its dequantized weight."""
    weight = layer.quant_method.restore(layer).dense()
    dense = F.linear(x.float(), weight)
    with torch.no_grad():
        own = LinearBase.forward(layer, x)
    return own + (dense - dense.detach()).to(own.dtype)


def adapter_gradients(model):
    """Return the gradients of all adapters after one step."""
    loss = model(input_ids=IDS, labels=IDS).loss
    loss.backward()
    return {n: p.grad for n, p in model.named_parameters() if "lora_" in n}


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize(("name", "dtype", "kernel"), MODELS)
def test_a_training_step_has_the_gradients_of_the_dequantized_layers(
    shared, monkeypatch, name, dtype, kernel
):
    """Tolerance: in bfloat16 each layer rounds what flows back, five layers deep."""
    peft = pytest.importorskip("peft", reason="needs the package peft")
    torch.manual_seed(3)
    model = load(shared / "models" / name, dtype=dtype)
    assert any(kernel in str(m.quant_method) for m in quantized(model).values())
    config = peft.LoraConfig(r=4, target_modules=["q_proj", "up_proj"], init_lora_weights=False)
    adapted = peft.get_peft_model(model, config)
    ours = adapter_gradients(adapted)
    adapted.zero_grad()
    for layer in quantized(model).values():
        monkeypatch.setattr(
            layer, "forward", lambda x, layer=layer: with_gradient_of_dense(layer, x)
        )
    dense = adapter_gradients(adapted)
    allowed = 1e-4 if dtype == "float32" else 5e-2
    assert ours.keys() == dense.keys() and len(ours) == 20
    for key, gradient in ours.items():
        assert gradient is not None and bool(gradient.any()), key
        error = (gradient - dense[key]).norm() / dense[key].norm()
        assert float(error) < allowed, (key, float(error))


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_a_packed_head_of_tied_embeddings_is_kept_as_stored(make_toy, tmp_path, dtype):
    """In 4 bits, whose kernel in bfloat16 has its own name for the codes."""
    folder = shutil.copytree(make_toy(tie_word_embeddings=True), tmp_path / "tied")
    head = packed(torch.randn(320, 256) * 0.02)
    edit_tensors(
        folder, lambda tensors: tensors.update({f"lm_head.{n}": t for n, t in head.items()})
    )
    edit_config(
        folder,
        quantization_config={
            "quant_method": "gptq",
            "bits": 4,
            "group_size": 128,
            "sym": True,
            "desc_act": False,
            "lm_head": True,
        },
    )
    model = load(folder, dtype=dtype)
    assert isinstance(model.get_output_embeddings(), LinearBase)
    assert not model.get_output_embeddings().weight.is_floating_point()
    warnings = " ".join(model.quantdock_plan.warnings)
    assert "the file stores the first quantized: both are used as stored" in warnings
