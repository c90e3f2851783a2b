"""Adapters on quantized layers: base plus delta, and what a runner can ask of the base."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import quantdock
from demo.models import TINY_LLAMA
from quantdock import dispatch_for, get_quantization_config
from quantdock.layers import LinearBase

METHODS = ("fp8_per_tensor", "fp8_per_channel", "fp8_per_block", "mxfp8")


def layer_of(method):
    config = get_quantization_config(method, "cpu").online().bind(dispatch_for("cpu"))
    layer = LinearBase(256, 128, quant_config=config, prefix="q_proj", params_dtype=torch.float32)
    nn.init.normal_(layer.bias)
    layer.quant_method.pending.add("weight", torch.randn(128, 256))
    layer.quant_method.process_weights_after_loading(layer)
    return layer


class Model(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.q_proj = layer

    def forward(self, x):
        return self.q_proj(x)


@pytest.mark.parametrize("method", METHODS)
def test_the_accessor_tells_the_base_format(method):
    layer = layer_of(method)
    format = layer.base_format
    assert (format.in_features, format.out_features) == (256, 128)
    assert format.dtype == torch.float32 and format.device.type == "cpu"
    assert format.kernel == "reference"
    assert format.scheme == layer.quant_method.selection.scheme


def test_the_accessor_of_an_unquantized_layer():
    format = LinearBase(16, 8, params_dtype=torch.bfloat16).base_format
    assert format.scheme is None and format.kernel is None
    assert format.dtype == torch.bfloat16


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("method", METHODS)
def test_an_adapter_adds_its_delta_and_nothing_else(method):
    peft = pytest.importorskip("peft", reason="needs the package peft")
    layer = layer_of(method)
    x = torch.randn(2, 3, 256)
    base = layer(x)
    config = peft.LoraConfig(r=8, lora_alpha=16, target_modules=["q_proj"], init_lora_weights=False)
    model = peft.get_peft_model(Model(layer), config)
    adapted = model.base_model.model.q_proj
    down, up = adapted.lora_A["default"].weight, adapted.lora_B["default"].weight
    assert down.dtype == up.dtype == torch.float32, "never the dtype of the codes"
    with torch.no_grad():
        assert torch.allclose(model(x), base + 2.0 * (x @ down.T) @ up.T, rtol=1e-5, atol=1e-4)
        with model.disable_adapter():
            assert torch.equal(model(x), base)
    with pytest.raises(RuntimeError):
        adapted.merge()


@pytest.mark.filterwarnings("ignore")
def test_an_adapter_on_a_loaded_model():
    peft = pytest.importorskip("peft", reason="needs the package peft")
    ids = torch.arange(3, 20)[None]
    model = quantdock.load(TINY_LLAMA, quantization="fp8_per_block", device="cpu")
    with torch.no_grad():
        base = model(input_ids=ids).logits
        config = peft.LoraConfig(r=4, target_modules=["q_proj", "up_proj"])  # starts at zero
        adapted = peft.get_peft_model(model, config)
        assert torch.equal(adapted(input_ids=ids).logits, base)
