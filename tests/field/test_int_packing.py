"""Storage dtypes of the field: S38 - what is part of a format is never cast."""

from __future__ import annotations

import pytest
import torch

from toy_llama import BLOCK, EMBEDDING, LINEARS, TENSOR, Q, codes, llama, load, logits, run, write

MX = {"quant_method": "mxfp8"}


def bits(model):
    """Return the bytes and dtypes of all that belongs to quantized layers."""
    return {
        f"{name}.{part}": (tensor.dtype, tensor.clone().view(torch.uint8))
        for name in LINEARS
        for part, tensor in model.get_submodule(name).named_parameters()
        if part != "bias"
    }


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize(
    ("block", "tile"), [(BLOCK, "128x128"), (TENSOR, "*x*"), (TENSOR, "1x*"), (MX, "1x32")]
)
def test_s38_the_models_dtype_does_not_reach_codes_and_scales(tmp_path, block, tile, dtype):
    tensors = llama(tile)
    if block is MX:
        for name in [name for name in tensors if name.endswith("weight_scale_inv")]:
            tensors[name] = torch.full(tensors[name].shape, 122, dtype=torch.uint8)
    model = load(write(tmp_path, tensors, block), dtype=dtype)
    assert model.get_input_embeddings().weight.dtype == getattr(torch, dtype)
    before = bits(model)
    for name in LINEARS:
        stored = tensors[f"{name}.weight"]
        assert before[f"{name}.weight"][0] == torch.float8_e4m3fn
        assert torch.equal(before[f"{name}.weight"][1], stored.view(torch.uint8))
        assert before[f"{name}.weight_scale"][0] == torch.float32
    for cast in (model.half, model.bfloat16, lambda: model.to(torch.float64), model.float):
        cast()
        assert bits(model).keys() == before.keys()
        for name, (kept, raw) in bits(model).items():
            assert kept == before[name][0] and torch.equal(raw, before[name][1]), name
    assert model.get_submodule(EMBEDDING).weight.dtype == torch.float32
    assert logits(model).isfinite().all()


def test_s38_a_file_of_bfloat16_scales_runs_with_their_values(tmp_path):
    """120 and 0.0078125 survive any dtype of the model; float16 would have kept neither bit."""
    tensors = llama("128x128") | {f"{Q}.weight": codes(256, 256)}
    scale = torch.tensor([[0.0078125, 120.0], [1e-30, 3e30]], dtype=torch.bfloat16)
    tensors[f"{Q}.weight_scale_inv"] = scale
    model = load(write(tmp_path, tensors, BLOCK), dtype="float16")
    assert torch.equal(model.get_submodule(Q).weight_scale, scale.float())
    x = torch.zeros(1, 256, dtype=torch.float16)
    x[0, 0] = 1.0
    assert run(model, Q, x)[0, :128].unique().tolist() == [0.0078125]
