"""Encodings of the field: S07, S21, S40 - bits are moved, values are decoded, each once."""

from __future__ import annotations

import pytest
import torch

from quantdock.formats import parse_spec
from quantdock.numerics import decode_scale, dequantize, encode_scale, unpack_bytes
from quantdock.testing import use_plugins
from toy_llama import DOWN, LINEARS, Q, codes, dense, encoded, llama, load, make_layer, run, write

BYTES = torch.tensor([120, 125, 127, 130, 140], dtype=torch.uint8)
VALUES = [0.0078125, 0.25, 1.0, 8.0, 8192.0]
GROUPS = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [1, 32]}


def with_bytes(storage):
    """Return a model whose down projection [256, 160] has exponent bytes for scales."""
    tensors = llama("1x32", intermediate=160)
    for name in [name for name in tensors if name.endswith("weight_scale_inv")]:
        tensors[name] = tensors[name].to(torch.float8_e8m0fnu).view(storage)
    tensors[f"{DOWN}.weight"] = codes(256, 160)
    tensors[f"{DOWN}.weight_scale_inv"] = BYTES.repeat(256, 1).view(storage)
    return tensors


@pytest.mark.parametrize("method", ["fp8", "mxfp8"])
def test_s07_exponent_bytes_are_bits_in_either_storage(tmp_path, method):
    block = GROUPS if method == "fp8" else {"quant_method": "mxfp8"}
    states = []
    for storage in (torch.uint8, torch.float8_e8m0fnu):
        folder = write(tmp_path / str(storage), with_bytes(storage), block, intermediate_size=160)
        weight = dense(folder, DOWN)
        assert weight[0, ::32].tolist() == VALUES
        assert torch.equal(weight, weight[:1].repeat(256, 1))
        model = load(folder, dtype="bfloat16")
        states.append(model.state_dict())
        one_group = torch.zeros(5, 160, dtype=torch.bfloat16)
        for group in range(5):
            one_group[group, 32 * group] = 1.0
        assert run(model, DOWN, one_group)[:, 0].tolist() == VALUES
    first, second = states
    assert first.keys() == second.keys()
    for name, tensor in first.items():
        assert torch.equal(tensor.view(torch.uint8), second[name].view(torch.uint8)), name


def test_s07_scales_of_another_layer_in_bfloat16_are_values(tmp_path):
    tensors = with_bytes(torch.uint8)
    scale = torch.tensor([0.0078125, 120.0], dtype=torch.bfloat16).repeat(256, 4)
    tensors |= {f"{Q}.weight": codes(256, 256), f"{Q}.weight_scale_inv": scale}
    folder = write(tmp_path, tensors, GROUPS, intermediate_size=160)
    assert dense(folder, Q)[0, ::32].tolist() == [0.0078125, 120.0] * 4
    assert dense(folder, DOWN)[0, ::32].tolist() == VALUES


FEW = torch.tensor([[1.0, -1.0, -0.0, 2.0**-9, 448.0]])
HALVES = [0.5, -0.5, 0.0, 2.0**-10, 224.0]


@pytest.mark.parametrize(
    ("block", "scale"),
    [
        ({"quant_method": "fp8"}, torch.tensor(0.5)),
        (
            {"quant_method": "fp8", "weight_block_size": [1, 32], "scale_fmt": "ue8m0"},
            torch.tensor([[126]], dtype=torch.uint8).view(torch.float8_e8m0fnu),
        ),
        ({"quant_method": "mxfp8"}, torch.tensor([[126]], dtype=torch.uint8)),
    ],
    ids=["f32", "e8m0", "bytes"],
)
def test_s21_a_device_of_the_other_encoding_gets_the_same_values(block, scale):
    with use_plugins("quantdock_rocm.plugin"):
        name = "weight_scale_inv" if scale.dim() else "weight_scale"
        stored = {"weight": FEW.to(torch.float8_e4m3fn), name: scale}
        kind = block["quant_method"]
        layer = make_layer(block, 5, [stored], name=kind, platform="rocm:gfx942")
        here = make_layer(block, 5, [stored], name=kind)
    assert layer.weight.dtype == torch.float8_e4m3fnuz
    assert layer.weight.float().tolist() == [HALVES]
    assert not torch.signbit(layer.weight.float()[0, 2])
    assert layer.weight_scale.flatten().tolist() == [1.0]
    assert here.weight_scale.flatten().tolist() == [0.5]
    before = layer.weight.view(torch.uint8).clone()
    layer.quant_method.process_weights_after_loading(layer)
    assert torch.equal(layer.weight.view(torch.uint8), before)
    assert layer.weight_scale.flatten().tolist() == [1.0]
    x = 448 * torch.eye(5)  # its own scale is 1, or 1/2 as 224: exact
    assert (layer(x) / 448).flatten().tolist() == (here(x) / 448).flatten().tolist() == HALVES


def test_s40_every_code_decodes_as_its_format_says(tmp_path):
    tensors = llama("*x*")
    every = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn)
    tensors |= {f"{Q}.weight": every.repeat(256, 1), f"{Q}.weight_scale": torch.tensor(1.0)}
    folder = write(tmp_path, tensors, {"quant_method": "fp8"})
    row = dense(folder, Q)[0]
    assert torch.arange(256)[row.isnan()].tolist() == [0x7F, 0xFF]
    assert row[:9].tolist() == [i * 2.0**-9 for i in range(9)]
    assert row[0x7E] == 448 and torch.signbit(row[0x80])
    rest = ~row.isnan()
    assert torch.equal(row[rest].view(torch.int32), every.float()[rest].view(torch.int32))


def test_s40_a_layer_runs_on_the_values_of_its_codes(tmp_path):
    """Each output is one code, exactly; NaN codes make their own output NaN."""
    tensors = llama("*x*")
    every = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn)
    tensors |= {
        f"{Q}.weight": every[:, None].repeat(1, 256),
        f"{Q}.weight_scale": torch.tensor(1.0),
    }
    model = load(write(tmp_path, tensors, {"quant_method": "fp8"}))
    one = torch.zeros(1, 256)
    one[0, 0] = 448.0  # so that the scale of this token is 1
    found = run(model, Q, one)[0] / 448
    torch.testing.assert_close(found, every.float(), rtol=0, atol=0, equal_nan=True)


def test_s40_all_zero_blocks_stay_zero(tmp_path):
    tensors = llama()
    tensors[f"{Q}.weight"] = torch.zeros(256, 256, dtype=torch.bfloat16)
    for method in ("fp8_per_tensor", "fp8_per_channel", "fp8_per_block", "mxfp8"):
        model = load(write(tmp_path / method, tensors), method)
        assert run(model, Q, torch.randn(3, 256)).abs().max() == 0
        assert run(model, DOWN, torch.zeros(2, 512)).abs().max() == 0
    stored = llama("128x128") | encoded(Q, tensors[f"{Q}.weight"], "128x128")
    folder = write(
        tmp_path / "stored", stored, {"quant_method": "fp8", "weight_block_size": [128, 128]}
    )
    assert len(LINEARS) == load(folder).quantdock_plan.totals.quantized
    assert dense(folder, Q).abs().max() == 0


FP4_16 = "fp4_e2m1[1x16]"
NIBBLES = torch.arange(0, 16, 2, dtype=torch.uint8) | torch.arange(1, 17, 2, dtype=torch.uint8) << 4
E2M1 = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]


@pytest.mark.parametrize(("byte", "factor"), [(0x38, 1.0), (0x01, 2.0**-9), (0x7E, 448.0)])
def test_s40_nibbles_decode_as_e2m1_under_scales_in_e4m3(byte, factor):
    """Block scale byte 0x01 is a subnormal of e4m3, which is no 2^-7 * 1.125."""
    scale = torch.tensor([[byte]], dtype=torch.uint8).view(torch.float8_e4m3fn)
    weight = dequantize(unpack_bytes(NIBBLES[None], bits=4), scale, parse_spec(f"{FP4_16}:e4m3"))
    assert weight[0].tolist() == [factor * value for value in (*E2M1, *(-v for v in E2M1))]
    assert torch.signbit(weight[0]).tolist() == [False] * 8 + [True] * 8


def test_s40_every_block_scale_decodes_as_e4m3_says():
    every = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn)
    codes = torch.full((256, 16), 2, dtype=torch.uint8)  # 1.0
    spec = parse_spec(f"{FP4_16}:e4m3:second[*x*]")
    weight = dequantize(codes, every[:, None], spec, second_scale=torch.tensor(1.0))
    torch.testing.assert_close(weight[:, 0], every.float(), rtol=0, atol=0, equal_nan=True)
    assert torch.arange(256)[weight[:, 0].isnan()].tolist() == [0x7F, 0xFF]


@pytest.mark.parametrize("storage", [torch.uint8, torch.float8_e8m0fnu])
def test_s07_exponent_bytes_of_fp4_are_bits_in_either_storage(storage):
    ones = unpack_bytes(torch.full((1, 80), 0x22, dtype=torch.uint8), bits=4)
    scale = BYTES[None].view(storage)
    weight = dequantize(ones, scale, parse_spec("fp4_e2m1[1x32]:e8m0:even"))
    assert weight[0, ::32].tolist() == VALUES
    again = encode_scale(decode_scale(scale), "uint8")
    assert torch.equal(again, BYTES[None])
