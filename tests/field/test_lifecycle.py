"""Lives of layers in the field: S32, S51, S52 - loaded in any order, moved, adapted."""

from __future__ import annotations

import pytest
import torch

from quantdock.errors import LoadError
from toy_llama import (
    BLOCK,
    LINEARS,
    TENSOR,
    K,
    Q,
    llama,
    load,
    logits,
    make_layer,
    plans,
    run,
    write,
    write_shards,
)

ONLINE = ["fp8", "fp8_per_tensor", "fp8_per_channel", "fp8_per_block", "mxfp8"]


@pytest.mark.parametrize("method", ["fp8_per_block", "mxfp8"])
def test_s32_the_order_of_arrival_makes_no_difference(tmp_path, method):
    tensors = llama()
    names = list(tensors)
    orders = [[names], [names[::-1]], [names[::3], names[1::3], names[2::3]]]
    states = []
    for index, order in enumerate(orders):
        folder = write(tmp_path / str(index), {})
        write_shards(
            folder, {f"{i}.safetensors": {n: tensors[n] for n in p} for i, p in enumerate(order)}
        )
        states.append(load(folder, method).state_dict())
    for state in states[1:]:
        assert list(state) == list(states[0])
        for name, tensor in state.items():
            assert torch.equal(tensor.view(torch.uint8), states[0][name].view(torch.uint8)), name


@pytest.mark.parametrize("method", ONLINE)
def test_s32_a_layer_that_never_completes_is_reported(tmp_path, method):
    tensors = llama()
    del tensors[f"{Q}.weight"]
    with pytest.raises(LoadError, match=rf"in no file[\s\S]*{Q}\.weight"):
        load(write(tmp_path, tensors), method)
    part = {"weight": torch.ones(8, 32)}
    assert make_layer(None, 32, [part, part], name=method)(torch.ones(1, 32)).shape == (1, 16)
    with pytest.raises(LoadError, match=r"\.weight of shard 1"):
        make_layer(None, 32, [part, {}], name=method, sizes=[8, 8])


def devices(model):
    return {tensor.device.type for tensor in (*model.parameters(), *model.buffers())}


@pytest.mark.parametrize(("block", "tile"), [(BLOCK, "128x128"), (TENSOR, "*x*")])
def test_s51_all_of_a_layer_moves_as_one(tmp_path, block, tile):
    model = load(write(tmp_path, llama(tile), block))
    assert devices(model) == {"cpu"}
    expected = logits(model)
    assert torch.equal(logits(model.to("cpu")), expected)
    model.to("meta")
    assert devices(model) == {"meta"}
    layer = model.get_submodule(Q)
    assert layer.weight.dtype == torch.float8_e4m3fn
    assert layer.weight_scale.dtype == torch.float32
    y = layer(torch.ones(3, 256, device="meta"))
    assert (y.shape, y.device.type) == ((3, 256), "meta")


@pytest.mark.parametrize(("block", "tile"), [(BLOCK, "128x128"), (TENSOR, "1x*")])
def test_s51_weights_that_wait_elsewhere_come_back_for_each_call(tmp_path, block, tile):
    """accelerate's offloading takes every parameter away and brings it back, fp8 or not."""
    accelerate = pytest.importorskip("accelerate")
    model = load(write(tmp_path, llama(tile), block))
    expected = logits(model)
    accelerate.cpu_offload(model, execution_device=torch.device("cpu"))
    assert devices(model) == {"meta", "cpu"}
    assert devices(model.get_submodule(Q)) == {"meta"}
    for _ in range(2):
        assert torch.equal(logits(model), expected)


@pytest.mark.parametrize("method", ONLINE)
def test_s52_an_adapter_needs_no_dense_weight(tmp_path, method):
    base = load(write(tmp_path, llama()), method)
    layer = base.get_submodule(K)
    assert (layer.in_features, layer.out_features) == (256, 128)
    assert layer.weight.device.type == "cpu" and layer.weight is not None
    assert base.dtype == torch.float32
    generator = torch.Generator().manual_seed(2)
    a, b = (torch.randn(*shape, generator=generator) for shape in ((8, 256), (128, 8)))
    x = torch.randn(4, 256, generator=generator)
    y = run(base, K, x) + (x @ a.T) @ b.T * 2
    assert torch.allclose(y - run(base, K, x), (x @ a.T) @ b.T * 2, atol=1e-3)
    assert plans(base)[K].decision == "quantized"
    assert len([p for p in plans(base).values() if p.scheme]) == len(LINEARS)


@pytest.mark.filterwarnings("ignore::FutureWarning")  # between the two libraries
def test_s52_an_adapter_library_finds_the_layers(tmp_path):
    peft = pytest.importorskip("peft")
    model = load(write(tmp_path, llama("128x128"), BLOCK))
    before = logits(model)
    config = peft.LoraConfig(r=8, lora_alpha=16, target_modules=["q_proj"], init_lora_weights=False)
    adapted = peft.get_peft_model(model, config)
    assert not torch.equal(logits(adapted), before)
    with adapted.disable_adapter():
        assert torch.equal(logits(adapted), before)
