"""Adapters on layers that the packed kernel runs; without a GPU it computes what the core does."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from quantdock import dispatch_for, get_quantization_config
from quantdock.layers import LinearBase
from quantdock.testing import use_plugins
from toy_gptq import GPTQ, packed

N, K = 128, 256


@pytest.fixture
def layer():
    """Return a GPTQ layer in bfloat16, laid out for an sm_90."""
    with use_plugins("quantdock_cuda.plugin"):
        config = get_quantization_config("gptq_marlin", "cuda:sm_90").from_config(GPTQ)
        layer = LinearBase(
            K,
            N,
            bias=False,
            quant_config=config.bind(dispatch_for("cuda:sm_90")),
            prefix="q_proj",
            params_dtype=torch.bfloat16,
        )
        stored = packed(torch.randn(N, K, generator=torch.Generator().manual_seed(0)))
        for name, tensor in stored.items():
            layer.quant_method.pending.add(name, tensor)
        layer.quant_method.process_weights_after_loading(layer)
    return layer


def test_weight_is_the_words(layer):
    assert "cuda_w4a16" in str(layer.quant_method)
    assert layer.weight is layer._parameters["weight_words"]
    assert layer.weight.dtype == torch.int16


@pytest.mark.filterwarnings("ignore")
def test_an_adapter_trains(layer):
    peft = pytest.importorskip("peft", reason="needs the package peft")
    torch.manual_seed(1)
    config = peft.LoraConfig(r=4, lora_alpha=4, target_modules=["0"], init_lora_weights=False)
    model = peft.get_peft_model(nn.Sequential(layer), config)
    adapted = model.base_model.model[0]
    down, up = adapted.lora_A["default"].weight, adapted.lora_B["default"].weight
    assert down.dtype == up.dtype == torch.float32, "never the dtype of the codes"
    x = torch.randn(3, K).bfloat16().requires_grad_()
    model(x).float().sum().backward()
    dense = layer.quant_method.restore(layer).dense() + (up @ down).detach()
    expected = dense.sum(0).expand(3, -1)
    assert float((x.grad - expected).norm() / expected.norm()) < 1e-2
    assert bool(down.grad.any()) and bool(up.grad.any())
