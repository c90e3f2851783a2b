"""Linear layers under an fp8 config: fused shards, moves, finishing twice."""

from __future__ import annotations

import pytest
import torch

from quantdock import dispatch_for
from quantdock.configs.fp8 import Fp8Config
from quantdock.errors import ConfigError, LoadError
from quantdock.layers import LinearBase, ReplicatedLinear

PER_TENSOR = {"quant_method": "fp8", "activation_scheme": "dynamic"}
BLOCK = {**PER_TENSOR, "weight_block_size": [128, 128]}


def config(block):
    return Fp8Config.from_config(block).bind(dispatch_for("cpu"))


def codes(rows, columns, value):
    return torch.full((rows, columns), value).to(torch.float8_e4m3fn)


def push(layer, name, tensor, shard=0):
    parameter = layer._parameters[name]
    parameter.weight_loader(parameter, tensor, shard)


def test_unquantized_layer_is_a_plain_linear():
    layer = ReplicatedLinear(16, 32)
    push(layer, "weight", torch.randn(32, 16))
    torch.nn.init.normal_(layer.bias)
    layer.quant_method.process_weights_after_loading(layer)
    x = torch.randn(3, 16)
    assert torch.equal(layer(x), torch.nn.functional.linear(x, layer.weight, layer.bias))


def test_unset_memory_is_never_computed_with():
    layer = ReplicatedLinear(16, [8, 24])
    push(layer, "weight", torch.ones(8, 16))
    with pytest.raises(LoadError, match="no tensor arrived for shard 1"):
        layer.quant_method.process_weights_after_loading(layer)


def test_codes_are_no_weight_of_an_unquantized_layer():
    layer = ReplicatedLinear(16, 8)
    with pytest.raises(LoadError, match=r"weight \(shard 0\) is float8_e4m3fn \[8, 16\]"):
        push(layer, "weight", codes(8, 16, 1.0))


def test_fused_shards_keep_their_own_scales():
    layer = LinearBase(256, [256, 128, 128], bias=False, quant_config=config(PER_TENSOR))
    for shard, (rows, scale) in enumerate(((256, 0.5), (128, 0.25), (128, 1.0))):
        push(layer, "weight", codes(rows, 256, 16.0), shard)
        push(layer, "weight_scale", torch.tensor(scale), shard)
    layer.quant_method.process_weights_after_loading(layer)
    y = layer(torch.ones(1, 256))
    assert y[0, :256].unique().tolist() == [2048.0]
    assert y[0, 256:384].unique().tolist() == [1024.0]
    assert y[0, 384:].unique().tolist() == [4096.0]


def test_fused_parts_whose_last_block_is_ragged():
    layer = LinearBase(256, [256, 192], bias=False, quant_config=config(BLOCK))
    expected = []
    for shard, rows in enumerate((256, 192)):
        scale = torch.tensor([[1.0, 2.0], [3.0, 4.0]]) * (shard + 1)
        push(layer, "weight", codes(rows, 256, 1.0), shard)
        layer.quant_method.pending.add("weight_scale_inv", scale, shard)
        expected.append(scale.repeat_interleave(128, 0)[:rows].sum(1) * 128)
    layer.quant_method.process_weights_after_loading(layer)
    assert torch.equal(layer(torch.ones(1, 256))[0], torch.cat(expected))


def test_finishing_twice_changes_nothing_and_loading_again_replaces():
    layer = LinearBase(128, 128, bias=False, quant_config=config(PER_TENSOR))
    pending = layer.quant_method.pending
    pending.add("weight", codes(128, 128, 2.0))
    pending.add("weight_scale", torch.tensor(0.5))
    layer.quant_method.process_weights_after_loading(layer)
    first = layer(torch.ones(1, 128))
    layer.quant_method.process_weights_after_loading(layer)
    assert torch.equal(layer(torch.ones(1, 128)), first)
    pending.add("weight", codes(128, 128, 4.0))
    pending.add("weight_scale", torch.tensor(0.5))
    layer.quant_method.process_weights_after_loading(layer)
    assert torch.equal(layer(torch.ones(1, 128)), first * 2)


def test_loading_again_leaves_nothing_of_the_first_weight():
    layer = LinearBase(16, 8, bias=False, quant_config=config(PER_TENSOR))
    for value in (float("nan"), 1.0):
        loaded, scale = codes(8, 16, value), torch.tensor(1.0)
        for name, tensor in (("weight", loaded), ("weight_scale", scale)):
            layer.quant_method.pending.add(name, tensor)
        layer.quant_method.process_weights_after_loading(layer)
    assert layer(torch.ones(1, 16))[0].tolist() == [16.0] * 8


def test_a_layer_keeps_nothing_of_the_tensor_it_was_given():
    layer = LinearBase(16, 8, bias=False, quant_config=config(PER_TENSOR))
    loaded = codes(8, 16, 1.0)
    push(layer, "weight", loaded)
    push(layer, "weight_scale", torch.tensor(1.0))
    loaded.view(torch.uint8).zero_()
    layer.quant_method.process_weights_after_loading(layer)
    assert layer(torch.ones(1, 16))[0].tolist() == [16.0] * 8


def test_half_and_double_leave_codes_and_scales():
    layer = LinearBase(128, 128, bias=True, quant_config=config(PER_TENSOR))
    layer.quant_method.pending.add("weight", codes(128, 128, 2.0))
    layer.quant_method.pending.add("weight_scale", torch.tensor(0.5))
    layer.quant_method.process_weights_after_loading(layer)
    torch.nn.init.zeros_(layer.bias)
    layer.half()
    assert layer.weight.dtype == torch.float8_e4m3fn
    assert layer.weight_scale.dtype == torch.float32
    assert layer.bias.dtype == torch.float16
    assert layer(torch.ones(1, 128, dtype=torch.float16))[0, 0].item() == 128.0


def test_moving_before_loading_keeps_the_slots():
    layer = LinearBase(128, 128, bias=False, quant_config=config(PER_TENSOR)).to("cpu").half()
    assert layer.weight.is_meta
    layer.quant_method.pending.add("weight", codes(128, 128, 1.0))
    layer.quant_method.pending.add("weight_scale", torch.tensor(1.0))
    layer.quant_method.process_weights_after_loading(layer)
    assert layer(torch.ones(1, 128))[0, 0].item() == 128.0


def test_a_config_without_a_platform_says_what_to_call():
    with pytest.raises(ConfigError, match="bound to no platform"):
        LinearBase(16, 16, quant_config=Fp8Config.from_config(PER_TENSOR))


@pytest.mark.parametrize("shape", [(128,), (1, 7, 128), (2, 3, 5, 128), (2, 0, 128)])
def test_leading_dimensions_survive(shape):
    layer = LinearBase(128, 64, bias=False, quant_config=config(PER_TENSOR))
    layer.quant_method.pending.add("weight", codes(64, 128, 1.0))
    layer.quant_method.pending.add("weight_scale", torch.tensor(1.0))
    layer.quant_method.process_weights_after_loading(layer)
    y = layer(torch.ones(shape))
    assert y.shape == (*shape[:-1], 64)
    assert (y == 128.0).all()


@pytest.mark.parametrize("loaded", [False, True])
def test_a_layer_that_is_called_too_early_says_what_it_waits_for(loaded):
    """Its parameters have no memory, with which torch computes on a CPU nevertheless."""
    layer = ReplicatedLinear(16, 32, bias=False, quant_config=config(PER_TENSOR))
    if loaded:
        push(layer, "weight", codes(32, 16, 1.0))
        push(layer, "weight_scale", torch.tensor(0.5))
    for call in (layer, lambda x: layer.quant_method.apply_partial(layer, x)):
        with pytest.raises(LoadError, match="ReplicatedLinear was called before its weights") as e:
            call(torch.ones(2, 16))
        assert "process_weights_after_loading(layer)" in e.value.todo
    if loaded:
        layer.quant_method.process_weights_after_loading(layer)
        assert torch.allclose(layer(torch.ones(2, 16)), torch.full((2, 32), 8.0), rtol=0.1)


def test_a_layer_without_a_prefix_is_called_by_its_class():
    layer = ReplicatedLinear(16, [32, 32], bias=False, quant_config=config(PER_TENSOR))
    with pytest.raises(LoadError) as caught:
        layer.quant_method.process_weights_after_loading(layer)
    assert caught.value.what.startswith("ReplicatedLinear: ")
    assert caught.value.why[0].startswith("missing ReplicatedLinear.weight of shard 0")


@pytest.mark.parametrize("shard", [2, -1, "q"])
@pytest.mark.parametrize("block", [PER_TENSOR, None])
def test_a_shard_that_there_is_not(block, shard):
    layer = ReplicatedLinear(16, [32, 32], quant_config=block and config(block))
    for name, tensor in (("weight", codes(32, 16, 1.0)), ("bias", torch.ones(32))):
        with pytest.raises(LoadError, match=f"{name} was loaded for shard {shard!r}") as caught:
            push(layer, name, tensor, shard)
        assert caught.value.why == ("the layer's shards are 0, 1",)


def test_a_class_is_no_config():
    with pytest.raises(ConfigError, match="quant_config is the class Fp8Config") as caught:
        ReplicatedLinear(16, 32, quant_config=Fp8Config)
    assert "Fp8Config.from_config(" in caught.value.todo and ".bind(" in caught.value.todo
