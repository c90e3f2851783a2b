"""Inputs of the field: S30, S49, S50 - any strides, any leading dimensions, any length."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
import torch

from quantdock.kernels import scaled_linear as module
from toy_llama import (
    BLOCK,
    STATIC,
    TENSOR,
    K,
    Q,
    llama,
    load,
    make_layer,
    run,
    with_input_scales,
    write,
)
from toy_llama import codes as same_codes

ONLINE = ["none", "fp8", "fp8_per_tensor", "fp8_per_channel", "fp8_per_block", "mxfp8"]
STORED = {
    "tensor": (TENSOR, "*x*"),
    "static": (STATIC, "*x*"),
    "channel": ({"quant_method": "w8a8_fp8"}, "1x*"),
    "fbgemm": ({"quant_method": "fbgemm_fp8"}, "1x*"),
    "block": (BLOCK, "128x128"),
}
ALL = [*ONLINE, *STORED]


@pytest.fixture(scope="module")
def get_model(tmp_path_factory):
    """Return a function that loads the Llama by one method, each once."""
    models = {}

    def get(method):
        if method not in models:
            folder: Path = tmp_path_factory.mktemp(method)
            block, tile = STORED.get(method, (None, None))
            tensors = llama(tile)
            tensors = with_input_scales(tensors) if block is STATIC else tensors
            word = method if method in ONLINE else None
            models[method] = load(write(folder, tensors, block), word, dtype="bfloat16")
        return models[method]

    return get


def values(*shape):
    generator = torch.Generator().manual_seed(3)
    return torch.randn(shape, generator=generator).to(torch.bfloat16)


@pytest.mark.parametrize("method", ALL)
def test_s30_strides_are_honoured_and_the_input_stays(get_model, method):
    model = get_model(method)
    inputs = [
        values(17, 384)[:, 64:320],
        values(256, 17).t(),
        values(4, 10, 256)[:, ::2, :],
        values(1, 256).expand(9, 256),
        values(4, 10, 256).transpose(0, 1),
    ]
    for x in inputs:
        before = x.clone()
        assert not x.is_contiguous()
        assert torch.equal(run(model, K, x), run(model, K, x.contiguous()))
        assert torch.equal(x, before)


@pytest.mark.parametrize("block", [TENSOR, BLOCK])
def test_s30_a_weight_that_is_a_view_of_a_padded_buffer(block):
    padded = values(128, 288).to(torch.float8_e4m3fn)
    name = "weight_scale_inv" if block is BLOCK else "weight_scale"
    scale = torch.tensor([[0.5, 2.0]]) if block is BLOCK else torch.tensor(0.5)
    x = values(5, 256)
    results = [
        make_layer(block, 256, [{"weight": weight, name: scale}], dtype=torch.bfloat16)(x)
        for weight in (padded[:, :256], padded[:, :256].contiguous())
    ]
    assert torch.equal(*results)


@pytest.mark.parametrize("method", ALL)
def test_s49_leading_dimensions_dtype_and_device_stay(get_model, method):
    model = get_model(method)
    for shape in ((256,), (1, 7, 256), (2, 3, 5, 256), (2, 0, 256), (0, 256)):
        x = values(*shape)
        y = run(model, K, x)
        assert y.shape == (*shape[:-1], 128)
        assert (y.dtype, y.device) == (x.dtype, x.device)
        rows = run(model, K, x.reshape(-1, 256)).view(y.shape)
        assert torch.equal(y, rows)


@pytest.mark.parametrize("method", ALL)
def test_s49_no_token_at_all_goes_through_a_whole_block(get_model, method):
    assert run(get_model(method), "model.layers.0.mlp", values(3, 0, 256)).shape == (3, 0, 256)


@pytest.mark.parametrize("method", ["fp8_per_channel", "block", "static"])
def test_s50_long_prompts_take_turns_and_the_last_row_is_its_own(get_model, method, monkeypatch):
    """No product is larger than the limit; with one more row the last turn is a single row."""
    model = get_model(method)
    shapes = []
    real = module.multiply

    def recording(*arguments, **options):
        result = real(*arguments, **options)
        shapes.append(tuple(result.shape))
        return result

    monkeypatch.setattr(module, "multiply", recording)
    monkeypatch.setattr(module, "LARGEST_TURN", 256 * 16)
    x = values(65, 256)
    y = run(model, Q, x)
    assert [m for m, _ in shapes] == [16, 16, 16, 16, 1]
    assert all(m * n <= 256 * 16 for m, n in shapes)
    assert torch.equal(y[-1], run(model, Q, x[-1:])[0])


def test_s50_the_limit_holds_for_the_largest_layers():
    turns = module.row_turns(65_552, 32_768)
    assert (turns[0].start, turns[-1].stop) == (0, 65_552)
    assert max(t.stop - t.start for t in turns) * 32_768 <= 2**31
    assert all(a.stop == b.start for a, b in pairwise(turns))
    weight = {"weight": same_codes(8, 16), "weight_scale": torch.tensor(1.0)}
    assert make_layer(TENSOR, 16, [weight])(torch.ones(3, 16)).tolist() == [[16.0] * 8] * 3
