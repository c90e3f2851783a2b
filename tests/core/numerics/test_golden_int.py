"""Integers with and without zero points against other libraries; rows as in test_golden_fp8."""

from __future__ import annotations

import pytest
import torch

from quantdock.formats import parse_spec
from quantdock.numerics import quantize, tile_amax

SAME = (0, 0, 0, 0)

# Symmetric: torchao spreads amax over (qmax - qmin) / 2, ours over the largest code. "bf16": it
# computes the scale in bf16. codes_given of int4_g64_sym_f32: it multiplies by 1 / scale.
TORCHAO = [
    ("int4_g64_sym_bf16", "int4[1x64]", (142, 1299, 0, 0)),
    ("int4_g64_sym_f32", "int4[1x64]", (142, 1351, 17, 0)),
    ("int8_row_sym_bf16", "int8[1x*]", (47, 231, 0, 0)),
    ("int8_row_symnoclip_f32", "int8[1x*]", (23, 972, 0, 0)),
    ("int8_row_asym_bf16", "int8[1x*]:zero", (48, 4087, 0, 0)),
    ("int8_row_asym_f32", "int8[1x*]:zero", SAME),
    ("uint4_g32_asym_bf16", "uint4[1x32]:zero", (270, 103, 0, 0)),
    ("uint4_g32_asym_f32", "uint4[1x32]:zero", SAME),
    ("uint8_tensor_asym_f32", "uint8[*x*]:zero", SAME),
]
# Symmetric scales are amax / 127.5 (int8) and amax / 7.5 (int4).
COMPRESSED_TENSORS = [
    ("int8_channel_sym", "int8[1x*]", (32, 421, 0, 0)),
    ("int8_tensor_sym", "int8[*x*]", (1, 22, 0, 0)),
    ("w8a8_f32", "int8[1x*]", (48, 1112, 0, 0)),
    ("w4afp8_bf16", "int4[1x128]:bf16", (95, 1456, 52, 0)),
]
ACTIVATIONS = [
    ("int8_token_asym_f32", "int8[1x*]:zero", SAME),
    ("int8_token_asym_bf16", "int8[1x*]:bf16:zero", (2, 820, 387, 0)),
    ("int8_token_sym_bf16", "int8[1x*]:bf16", (4, 331, 281, 0)),
]


@pytest.mark.parametrize(("name", "spec", "difference"), TORCHAO)
def test_int_torchao(vector, peer, compare, name, spec, difference):
    v = vector(f"int-torchao/{name}")
    zero = v["zero_point"] if ":zero" in spec else None
    theirs = peer(x=v["w"], codes=v["q"], scale=v["scale"], zero=zero, real=v["dequant"])
    assert compare(theirs, spec) == difference


@pytest.mark.parametrize(("name", "spec", "difference"), COMPRESSED_TENSORS)
def test_int_compressed_tensors(vector, peer, compare, name, spec, difference):
    v = vector(f"ct-int-quantized/{name}")
    codes, scale = v["ckpt.weight"], v["ckpt.weight_scale"]
    theirs = peer(x=v["weight"], codes=codes, scale=scale, real=v["dequant"])
    assert compare(theirs, spec) == difference


@pytest.mark.parametrize(("name", "spec", "difference"), ACTIVATIONS)
def test_int_activations(vector, peer, compare, name, spec, difference):
    v = vector(f"ct-activation/{name}")
    zero = v.get("zero_point")
    theirs = peer(x=v["x"], codes=v["q"], scale=v["scale"], zero=zero, real=v["fake_quant"])
    assert compare(theirs, spec) == difference


@pytest.mark.parametrize("name", ["int8_wo_bf16", "int8_wo_f32"])
def test_int8_modelopt_has_our_rule(vector, peer, compare, name):
    v = vector(f"modelopt-weight/{name}")
    theirs = peer(x=v["w"], codes=v["ckpt.weight"], scale=v["ckpt.weight_scale"])
    assert compare(theirs, "int8[1x*]") == SAME


def test_zero_points_equal_torchao(vector):
    v = vector("int-torchao/int8_row_asym_f32")
    q = quantize(v["w"], parse_spec("int8[1x*]:zero"))
    assert q.zero is not None
    assert torch.equal(q.zero[:, 0], v["zero_point"])


def test_symmetric_int8_scales_are_amax_over_127_and_theirs_over_127_5(vector):
    v = vector("ct-int-quantized/int8_channel_sym")
    spec = parse_spec("int8[1x*]")
    amax = tile_amax(v["weight"], spec)
    live = amax[:, 0] > 0
    ours = quantize(v["weight"], spec)
    assert torch.equal(ours.scale[live], amax[live] / 127)
    assert torch.equal(v["ckpt.weight_scale"][live], amax[live] / 127.5)
    assert (ours.codes.min(), ours.codes.max()) == (-127, 127)
    assert (v["ckpt.weight"].min(), v["ckpt.weight"].max()) == (-128, 127)
