"""Packed integers of the field: S06, S20, S38 - zero points, act-order, and no cast of words."""

from __future__ import annotations

import pytest
import torch

import quantdock
from quantdock.configs.awq_codes import encode_awq
from quantdock.configs.gptq import GPTQConfig
from quantdock.configs.gptq_codes import encode_gptq
from quantdock.formats import parse_spec
from quantdock.layers import ColumnParallelLinear, RowParallelLinear
from quantdock.numerics import CanonicalWeight, Segment
from toy_gptq import AWQ, GPTQ, V2, in_act_order, integer_llama
from toy_llama import (
    BLOCK,
    EMBEDDING,
    LINEARS,
    TENSOR,
    Q,
    codes,
    dense,
    llama,
    load,
    logits,
    run,
    write,
)
from toy_ranks import filled, ranks, relative, weight_of

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


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize(("method", "block"), [("gptq", GPTQ), ("awq", AWQ)])
def test_s38_packed_words_stay_words_whatever_the_models_dtype(tmp_path, method, block, dtype):
    tensors = integer_llama(method)
    model = load(write(tmp_path, tensors, block), dtype=dtype)
    before = bits(model)
    for cast in (model.half, model.bfloat16, lambda: model.to(torch.float64), model.float):
        cast()
        assert bits(model).keys() == before.keys()
        assert all(
            kept == before[name][0] and torch.equal(raw, before[name][1])
            for name, (kept, raw) in bits(model).items()
        )
    layer = model.get_submodule(Q)
    weight = layer.quant_method.restore(layer)
    again = encode_awq(weight) if method == "awq" else encode_gptq(weight)
    assert all(torch.equal(t, tensors[f"{Q}.{part}"]) for part, t in again.items())


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
class TestZeroPoints:
    """S06: codes are the middle and scales are 1, so a weight is the middle minus its zero."""

    def weight(self, folder, bits, stored, **fields):
        """Return the one value of q_proj's weight and the warnings of its load."""
        codes = torch.full((256, 256), 1 << bits - 1, dtype=torch.uint8)
        segment = Segment(
            spec=parse_spec(f"uint{bits}[1x128]:zero"),
            codes=codes,
            scale=torch.ones(256, 2),
            zero=torch.full((256, 2), stored, dtype=torch.int32),
        )
        parts = encode_gptq(CanonicalWeight(segments=(segment,)), V2)
        tensors = llama() | {f"{Q}.{part}": tensor for part, tensor in parts.items()}
        del tensors[f"{Q}.weight"]
        write(folder, tensors, {**GPTQ, "bits": bits, **fields})
        layer = load(folder).get_submodule(Q)
        (value,) = layer.quant_method.restore(layer).dequantize().unique().tolist()
        assert dense(folder, Q).unique().tolist() == [value]
        return value

    def test_both_versions(self, tmp_path, bits):
        middle = 1 << bits - 1
        assert self.weight(tmp_path, bits, middle - 1) == 0
        assert self.weight(tmp_path, bits, middle, checkpoint_format="gptq_v2") == 0

    def test_a_mislabelled_file_is_read_with_a_warning(self, tmp_path, bits, caplog):
        assert self.weight(tmp_path, bits, 1 << bits - 1) == 0
        assert f"{Q.replace('0', '*')} is stored with zero points as gptq_v2 has" in caplog.text

    def test_a_zero_point_of_zero_wraps(self, tmp_path, bits):
        assert self.weight(tmp_path, bits, (1 << bits) - 1, sym=False) == 1 << bits - 1


@pytest.mark.parametrize("layer_class", [ColumnParallelLinear, RowParallelLinear])
@pytest.mark.parametrize("order", ["permuted", "in a row", "not stored"])
def test_s20_ranks_of_a_layer_in_act_order_are_the_layer(layer_class, order):
    """Rows of a rank refer to groups all over the table, and to unequal numbers of each."""
    weight = in_act_order(16, 128)
    tensors = encode_gptq(weight)
    if order != "permuted":
        tensors["g_idx"] = torch.arange(128, dtype=torch.int32) // 32
    (segment,) = weight.segments
    index = tensors["g_idx"]
    real = segment.scale[:, index] * (segment.codes.int() - segment.zero[:, index])
    if order == "not stored":
        del tensors["g_idx"]
    x = torch.randn(3, 128, generator=torch.Generator().manual_seed(1))
    is_row = layer_class is RowParallelLinear
    for size in (1, 2, 4):
        block = {**GPTQ, "group_size": 32, "sym": False, "desc_act": order == "permuted"}
        config = GPTQConfig.from_config(block).bind(quantdock.dispatch_for("cpu"))
        layers = [
            filled(layer_class(128, 16, False, quant_config=config, group=group), [tensors])
            for group in ranks(size)
        ]
        assert torch.equal(torch.cat([weight_of(each) for each in layers], int(is_row)), real)
        pieces = x.chunk(size, dim=1) if is_row else [x] * size
        parts = [layer(piece) for layer, piece in zip(layers, pieces, strict=True)]
        found = sum(parts) if is_row else torch.cat(parts, dim=1)
        assert relative(found, x @ real.T) < 1e-5
        kept = {layer.quant_method.problem.scheme.weight.act_order for layer in layers}
        assert kept == {order == "permuted"}
