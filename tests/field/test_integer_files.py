"""Integer checkpoints of the field: S16, S26, S39, S45, S46, S56 in int4 and int8."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

import quantdock
from quantdock.errors import LoadError, NothingQuantizedError
from quantdock.formats import parse_spec
from quantdock.layers import ColumnParallelLinear, RowParallelLinear
from quantdock.numerics import pack_bits, quantize
from toy_llama import (
    EMBEDDING,
    HEAD,
    LINEARS,
    Q,
    dense,
    llama,
    load,
    logits,
    make_layer,
    plans,
    run,
    write,
)
from toy_ranks import filled, ranks, relative, weight_of

INT4 = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": 128}
INT8 = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "channel"}
TOKEN = {**INT8, "strategy": "token", "dynamic": True}
STATIC = {**INT8, "strategy": "tensor", "dynamic": False, "symmetric": False}
CT = "compressed-tensors"


def block(weights: dict[str, Any], inputs: Any = None, **more: Any) -> dict[str, Any]:
    group = {"targets": ["Linear"], "weights": weights, "input_activations": inputs}
    form = "pack-quantized" if inputs is None else "int-quantized"
    return {
        "quant_method": CT,
        "format": form,
        "config_groups": {"group_0": group},
        "ignore": ["lm_head"],
        **more,
    }


W4A16, W8A8 = block(INT4), block(INT8, TOKEN)


def packed(name: str, weight: Tensor) -> dict[str, Tensor]:
    """Return ``weight`` in int4 by groups of 128, as compressed-tensors stores it."""
    made = quantize(weight.float(), parse_spec("int4[1x128]"))
    codes = (made.codes.to(torch.int16) + 8).to(torch.uint8)
    return {
        f"{name}.weight_packed": pack_bits(codes, bits=4),
        f"{name}.weight_scale": made.scale,
        f"{name}.weight_shape": torch.tensor(weight.shape),
    }


def in_bytes(name: str, weight: Tensor) -> dict[str, Tensor]:
    made = quantize(weight.float(), parse_spec("int8[1x*]"))
    return {f"{name}.weight": made.codes, f"{name}.weight_scale": made.scale}


def model_tensors(store: Any = packed) -> dict[str, Tensor]:
    tensors = llama()
    for name in LINEARS:
        tensors |= store(name, tensors.pop(f"{name}.weight"))
    return tensors


def test_s56_the_old_key_is_the_modern_block_and_never_a_dense_model(tmp_path):
    tensors = model_tensors()
    inner = {**W4A16, "quant_method": "sparseml"}
    old = {"sparsity_config": None, "quantization_config": inner}
    model = load(write(tmp_path / "old", tensors, compression_config=old))
    modern = load(write(tmp_path / "new", tensors, W4A16))
    assert model.quantdock_plan.method_source.startswith("config.json: compression_config says")
    assert model.quantdock_plan.layers == modern.quantdock_plan.layers
    assert {plans(model)[name].scheme for name in LINEARS} == {"int4[1x128]"}
    assert torch.equal(logits(model), logits(modern))
    assert torch.equal(dense(tmp_path / "old", Q), dense(tmp_path / "new", Q))


def test_integer_weights_go_with_scales_of_the_kv_cache(tmp_path):
    attention = "model.layers.0.self_attn"
    scales = {f"{attention}.{k}_scale": torch.tensor([v]) for k, v in (("k", 0.25), ("v", 0.5))}
    args = {"num_bits": 8, "type": "float", "strategy": "tensor", "dynamic": False}
    made = {**W4A16, "kv_cache_scheme": {**args, "symmetric": True}}
    model = load(write(tmp_path, model_tensors() | scales, made))
    (row,) = model.quantdock_plan.attention
    assert (row.scheme, row.source) == ("fp8_e4m3[tensor]", "kv_cache_scheme")
    assert model.get_submodule(attention).kv_scales.v.value == 0.5
    assert plans(model)[Q].scheme == "int4[1x128]"
    assert logits(model).isfinite().all()


MTP = ("mtp.fc", "mtp.layers.0.mlp.down_proj")


def test_s16_a_speculative_block_that_no_list_names_is_what_the_file_stores(tmp_path):
    drafts = {name: 0.1 * torch.randn(256, 512) for name in MTP}
    plain = {f"{n}.weight": w.to(torch.bfloat16) for n, w in drafts.items()}
    folder = write(tmp_path / "plain", model_tensors() | plain, W4A16)
    layers = {layer.prefix: layer for layer in quantdock.explain(folder).layers}
    for name in MTP:
        assert layers[name].decision == "unquantized"
        assert layers[name].because == "the file stores it as bfloat16"
    tensors = model_tensors()
    for name, weight in drafts.items():
        tensors |= packed(name, weight)
    plan = quantdock.explain(write(tmp_path / "packed", tensors, W4A16))
    layers = {layer.prefix: layer for layer in plan.layers}
    assert {layers[name].scheme for name in MTP} == {"int4[1x128]"}
    assert not plan.warnings or not any("loading would stop" in w for w in plan.warnings)


@pytest.mark.parametrize("stored", [True, False])
def test_s26_a_tied_head_is_the_embedding_stored_or_not(tmp_path, stored):
    tensors = model_tensors(in_bytes)
    tensors[f"{HEAD}.weight"] = tensors[f"{EMBEDDING}.weight"].clone()
    if not stored:
        del tensors[f"{HEAD}.weight"]
    for name, ignored in (("listed", ["lm_head"]), ("not listed", [])):
        made = {**W8A8, "ignore": ignored}
        model = load(write(tmp_path / name, tensors, made, tie_word_embeddings=True))
        assert model.lm_head.weight is model.get_input_embeddings().weight
        assert plans(model)[Q].scheme == "int8[1x*] x int8[1x*]:dynamic"


def s39(x: float, zero: int | None = 5, inputs: dict[str, Any] = STATIC) -> Tensor:
    shard = {
        "weight": torch.ones(16, 256, dtype=torch.int8),
        "weight_scale": torch.full((16, 1), 0.01),
    }
    if not inputs["dynamic"]:
        shard["input_scale"] = torch.tensor([0.1])
    if zero is not None:
        shard["input_zero_point"] = torch.tensor([zero], dtype=torch.int8)
    layer = make_layer(block(INT8, inputs), 256, [shard], name=CT)
    with torch.no_grad():
        result: Tensor = layer(torch.full((3, 256), x))
    return result


def test_s39_the_zero_point_of_static_inputs_is_taken_off_once():
    """3.84 would be the sum with the zero point ignored, 1.28 with it subtracted twice."""
    assert torch.allclose(s39(1.0), torch.full((3, 16), 2.56), rtol=1e-5)
    assert torch.allclose(s39(-1.0), torch.full((3, 16), -2.56), rtol=1e-5)


def test_s39_dynamic_inputs_are_within_a_code():
    for inputs in (TOKEN, {**TOKEN, "symmetric": False}):
        assert torch.allclose(s39(1.0, None, inputs), torch.full((3, 16), 2.56), rtol=0.01)
        assert torch.allclose(s39(-1.0, None, inputs), torch.full((3, 16), -2.56), rtol=0.01)


def test_s39_a_fused_layer_has_a_zero_point_for_each_shard_or_refuses():
    shards = [
        {
            "weight": torch.ones(16, 256, dtype=torch.int8),
            "weight_scale": torch.full((16, 1), 0.01),
            "input_scale": torch.tensor([0.1]),
            "input_zero_point": torch.tensor([5], dtype=torch.int8),
        }
    ] * 2
    layer = make_layer(block(INT8, STATIC), 256, shards, name=CT)
    with torch.no_grad():
        assert torch.allclose(layer(torch.ones(1, 256)), torch.full((1, 32), 2.56), rtol=1e-5)


def test_s39_symmetric_files_with_zero_points_of_zero_have_none(tmp_path):
    tensors = model_tensors(in_bytes)
    for name in LINEARS:
        tensors[f"{name}.input_scale"] = torch.tensor([0.05])
        tensors[f"{name}.input_zero_point"] = torch.zeros(1, dtype=torch.int8)
    made = block(INT8, {**STATIC, "symmetric": True})
    model = load(write(tmp_path / "zeros", tensors, made))
    assert plans(model)[Q].scheme == "int8[1x*] x int8[*x*]"
    assert not any("zero" in name for name, _ in model.get_submodule(Q).named_parameters())
    tensors[f"{Q}.input_zero_point"] = torch.ones(1, dtype=torch.int8)
    with pytest.raises(LoadError, match=r"q_proj\.input_zero_point[\s\S]*a zero point is 1"):
        load(write(tmp_path / "ones", tensors, made))


@pytest.mark.parametrize("rows", [1, 33])
def test_s46_a_bias_is_added_once(rows):
    """200 would be the bias added by two owners."""
    shard = {
        "weight": torch.zeros(128, 256, dtype=torch.int8),
        "weight_scale": torch.ones(128, 1),
    }
    for inputs in (TOKEN, None):
        made = {**block(INT8, inputs), "format": "naive-quantized"}
        layer = make_layer(made, 256, [shard], name=CT, bias=torch.full((128,), 100.0))
        with torch.no_grad():
            assert torch.equal(layer(torch.randn(rows, 256)), torch.full((rows, 128), 100.0))


def test_s45_long_integer_sums_do_not_wrap():
    """127 * 127 * K passes 2^31 from K = 133,152 on."""
    k = 262_144
    shard = {
        "weight": torch.full((2, k), 127, dtype=torch.int8),
        "weight_scale": torch.full((2, 1), 1.0),
    }
    layer = make_layer(W8A8, k, [shard], name=CT)
    with torch.no_grad():
        result = layer(torch.full((1, k), 127.0))
    assert torch.allclose(result, torch.full((1, 2), 127.0 * 127 * k), rtol=1e-6)


def test_a_16_bit_model_asked_for_w8a8_int8_is_quantized_or_refused(tmp_path):
    """Peers compute with whatever memory the scales had."""
    folder = write(tmp_path, llama())
    model = load(folder, "w8a8_int8")
    assert plans(model)[Q].scheme == "int8[1x*] x int8[1x*]:dynamic"
    x = torch.randn(8, 256)
    exact = run(load(folder, "none"), Q, x)
    assert (run(model, Q, x) - exact).norm() < 0.02 * exact.norm()
    with pytest.raises(NothingQuantizedError, match="no layer of this checkpoint"):
        load(folder, "w8a8_int8", ignore=["model.*"])


def _shard(bits: int, order: Tensor | None) -> tuple[dict[str, Tensor], Tensor]:
    """Return 48 x 128 codes in groups of 32 with zero points, as stored, and their values."""
    generator = torch.Generator().manual_seed(bits)
    codes = torch.randint(0, 1 << bits, (48, 128), generator=generator, dtype=torch.uint8)
    zero = torch.randint(0, 1 << bits, (48, 4), generator=generator, dtype=torch.uint8)
    scale = torch.randn(48, 4, generator=generator)
    index = torch.arange(128) // 32 if order is None else order
    packed_zero = pack_bits(zero.T.contiguous(), bits=bits).T.contiguous()
    tensors = {
        "weight_packed": pack_bits(codes, bits=bits),
        "weight_scale": scale,
        "weight_shape": torch.tensor([48, 128]),
        "weight_zero_point": packed_zero,
    }
    if order is not None:
        tensors["weight_g_idx"] = order.to(torch.int32)
    return tensors, scale[:, index] * (codes.int() - zero.int()[:, index])


@pytest.mark.parametrize(
    ("kind", "size"),
    [
        (ColumnParallelLinear, 2),
        (ColumnParallelLinear, 3),
        (RowParallelLinear, 2),
        (RowParallelLinear, 8),
    ],
)
@pytest.mark.parametrize(("bits", "order"), [(4, False), (3, False), (4, True), (8, True)])
def test_s20_packed_words_are_decoded_before_they_are_cut(kind, size, bits, order):
    """Ranks begin inside words, groups and packed zero points."""
    permuted = (torch.arange(128) // 32)[torch.randperm(128)] if order else None
    tensors, real = _shard(bits, permuted)
    args = {**INT4, "num_bits": bits, "group_size": 32, "symmetric": False}
    config = quantdock.get_quantization_config(CT, "cpu").from_config(
        block({**args, "actorder": "group" if order else None})
    )
    config.bind(quantdock.dispatch_for("cpu"))
    layers = [
        filled(kind(128, 48, False, quant_config=config, group=g), [tensors]) for g in ranks(size)
    ]
    is_row = kind is RowParallelLinear
    assert torch.equal(torch.cat([weight_of(each) for each in layers], int(is_row)), real)
    x = torch.randn(5, 128)
    pieces = x.chunk(size, dim=1) if is_row else [x] * size
    parts = [layer(piece) for layer, piece in zip(layers, pieces, strict=True)]
    found = sum(parts) if is_row else torch.cat(parts, dim=1)
    assert relative(found, x @ real.T) < 1e-6


@pytest.mark.parametrize("kind", [ColumnParallelLinear, RowParallelLinear])
@pytest.mark.parametrize("inputs", [TOKEN, STATIC])
def test_s39_bytes_are_cut_with_their_input_zero_point(kind, inputs):
    config = quantdock.get_quantization_config(CT, "cpu").from_config(block(INT8, inputs))
    config.bind(quantdock.dispatch_for("cpu"))
    generator = torch.Generator().manual_seed(1)
    codes = torch.randint(-128, 128, (16, 64), generator=generator, dtype=torch.int8)
    stored = {"weight": codes, "weight_scale": torch.rand(16, 1, generator=generator)}
    if inputs is STATIC:
        stored["input_scale"] = torch.tensor([0.02])
        stored["input_zero_point"] = torch.tensor([-7], dtype=torch.int8)
    x = torch.rand(6, 64, generator=generator)
    whole = filled(kind(64, 16, False, quant_config=config), [stored])(x)
    layers = [filled(kind(64, 16, False, quant_config=config, group=g), [stored]) for g in ranks(2)]
    if kind is ColumnParallelLinear:
        assert torch.equal(torch.cat([layer(x) for layer in layers], 1), whole)
    else:
        parts = [layer(piece) for layer, piece in zip(layers, x.chunk(2, dim=1), strict=True)]
        assert relative(sum(parts), x @ (codes * stored["weight_scale"]).T) < 0.01


def _golden(golden, name):
    return load_file(golden / "ct-activation" / f"{name}.safetensors")


@pytest.mark.parametrize("name", ["int8_token_asym_f32", "int8_token_sym_bf16"])
def test_inputs_are_quantized_as_compressed_tensors_quantizes_them(golden, name):
    """A weight of ones on the diagonal gives back what the library's fake_quantize gives.

    Its symmetric scales are the largest value / 127.5, in bf16, and ours / 127, in f32.
    """
    vector = _golden(golden, name)
    eye = {"weight": torch.eye(256, dtype=torch.int8), "weight_scale": torch.ones(256, 1)}
    inputs = {**TOKEN, "symmetric": "asym" not in name}
    layer = make_layer(block(INT8, inputs), 256, [eye], name=CT)
    with torch.no_grad():
        found = layer(vector["x"].float())
    expected = vector["fake_quant"].float()
    if name.endswith("f32"):
        assert torch.equal(found, expected)
    else:
        assert ((found - expected).abs() <= 2 * vector["scale"].float()).all()


def test_a_weight_that_says_it_has_other_columns_is_refused():
    """61 codes of 4 bits take as many words as 60."""
    tensors = {
        "weight_packed": torch.zeros(16, 8, dtype=torch.int32),
        "weight_scale": torch.ones(16, 1),
        "weight_shape": torch.tensor([16, 61]),
    }
    made = block({**INT4, "strategy": "channel", "group_size": None})
    with pytest.raises(LoadError, match=r"is \[16, 61\][\s\S]*the layer has N=16 and K=60"):
        make_layer(made, 60, [tensors], name=CT, sizes=[16])
    tensors["weight_shape"] = torch.tensor([16, 60])
    layer = make_layer(made, 60, [tensors], name=CT, sizes=[16])
    with torch.no_grad():
        assert layer(torch.ones(1, 60))[0, 0] == -8 * 60
