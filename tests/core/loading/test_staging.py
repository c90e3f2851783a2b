"""Finishing on another device: tensors go there together and come back together."""

from __future__ import annotations

import torch

from quantdock import dispatch_for
from quantdock.configs.fp8 import Fp8Config
from quantdock.layers import LinearBase, ReplicatedLinear
from quantdock.loading.staging import finish_on

BLOCK = {"quant_method": "fp8", "weight_block_size": [128, 128]}


def fp8_layer():
    config = Fp8Config.from_config(BLOCK).bind(dispatch_for("cpu"))
    layer = LinearBase(256, 128, bias=False, quant_config=config)
    layer.quant_method.pending.add("weight", torch.ones(128, 256).to(torch.float8_e4m3fn))
    layer.quant_method.pending.add("weight_scale_inv", torch.tensor([[0.5, 2.0]]))
    return layer


def test_layer_is_prepared_on_the_device_and_comes_home(monkeypatch):
    layer = fp8_layer()
    seen, moves = [], []
    prepare, move = layer.quant_method.kernel.prepare, layer.quant_method.pending.move

    def watched_prepare(weight):
        seen.append({segment.codes.device.type for segment in weight.segments})
        return prepare(weight)

    monkeypatch.setattr(layer.quant_method.kernel, "prepare", watched_prepare)
    monkeypatch.setattr(
        layer.quant_method.pending, "move", lambda device: (moves.append(device), move(device))
    )
    finish_on(layer, "cpu")
    assert moves == [torch.device("cpu")] and seen == [{"cpu"}]
    assert {p.device.type for p in layer.parameters()} == {"cpu"}
    assert layer(torch.ones(1, 256)).unique().tolist() == [128 * 0.5 + 128 * 2.0]


def test_the_device_of_what_arrived(monkeypatch):
    layer = fp8_layer()
    assert layer.quant_method.pending.device == torch.device("cpu")
    layer.quant_method.pending.move(torch.device("meta"))
    assert layer.quant_method.pending.device == torch.device("meta")


def test_an_unquantized_layer_is_checked_too():
    layer = ReplicatedLinear(4, 4, bias=False)
    layer.weight.weight_loader(layer.weight, torch.eye(4))
    finish_on(layer, "cpu")
    assert torch.equal(layer(torch.eye(4)), torch.eye(4))
