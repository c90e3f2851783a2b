"""NVFP4, groups of 16 under one second scale, against other libraries."""

from __future__ import annotations

import pytest
import torch

from quantdock.formats import parse_spec
from quantdock.numerics import (
    Segment,
    decode,
    dequantize,
    encode_scale,
    quantize,
    tile_amax,
    unpack_bytes,
)

SAME = (0, 0, 0, 0)
NVFP4 = "fp4_e2m1[1x16]:e4m3:second[*x*]"
LOCAL = parse_spec("fp4_e2m1[1x16]:e4m3:dynamic:second[*x*]")


def modelopt(v, peer):
    return peer(
        x=v["w"],
        codes=unpack_bytes(v["ckpt.weight"], bits=4),
        scale=v["ckpt.weight_scale"].view(torch.float8_e4m3fn),
        second=v["ckpt.weight_scale_2"],
        real=v["dequant"],
    )


def compressed_tensors(v, peer):
    return peer(
        x=v["weight"],
        codes=unpack_bytes(v["ckpt.weight_packed"], bits=4),
        scale=v["ckpt.weight_scale"].view(torch.float8_e4m3fn),
        second=1 / v["ckpt.weight_global_scale"],  # stored as a divisor
        real=v["dequant"],
    )


@pytest.mark.parametrize("name", ["modelopt_bf16", "modelopt_f32"])
def test_modelopt(vector, peer, compare, name):
    theirs = modelopt(vector(f"nvfp4/{name}"), peer)
    assert compare(theirs, NVFP4) == SAME
    assert torch.equal(quantize(theirs.x, parse_spec(NVFP4)).second_scale, theirs.second.view(1, 1))


@pytest.mark.parametrize("name", ["nvfp4_f32", "nvfp4a16_f32"])
def test_compressed_tensors(vector, peer, compare, name):
    """Its divisor 448 * 6 / amax is the exact reciprocal of the multiplier amax / (448 * 6)."""
    v = vector(f"ct-nvfp4/{name}")
    theirs = compressed_tensors(v, peer)
    assert compare(theirs, NVFP4) == SAME
    second = quantize(theirs.x, parse_spec(NVFP4)).second_scale
    assert torch.equal(second, theirs.second.view(1, 1))
    assert torch.equal(1 / second.view(1), v["ckpt.weight_global_scale"])


def test_compressed_tensors_of_a_bf16_weight(vector, peer, compare):
    """It computes the scales in bf16, so they differ from ours; its file decodes to the same."""
    theirs = compressed_tensors(vector("ct-nvfp4/nvfp4a16_bf16"), peer)
    assert compare(theirs, NVFP4)[2:] == (0, 0)
    assert theirs.second == 1 / 1168  # where 448 * 6 / amax is 1165.7...
    assert quantize(theirs.x, parse_spec(NVFP4)).second_scale != theirs.second


@pytest.mark.parametrize("name", ["torchao_onelevel_bf16", "torchao_onelevel_f32"])
def test_torchao_without_a_second_scale(vector, peer, compare, name):
    """It stores no scale below 2^-6, e4m3's smallest normal value; ours go down to 2^-9."""
    v = vector(f"nvfp4/{name}")
    codes, scale = unpack_bytes(v["q"], bits=4), v["block_scale"].view(torch.float8_e4m3fn)
    theirs = peer(x=v["w"], codes=codes, scale=scale, real=v["dequant"])
    spec = parse_spec("fp4_e2m1[1x16]:e4m3")
    assert compare(theirs, str(spec))[2:] == (0, 0)
    assert compare(theirs, str(spec), smallest=6 * 2.0**-6) == SAME


def test_activations_under_a_stored_second_scale(vector):
    """Its scales of bf16 activations are computed in bf16: three of them are one step higher."""
    v = vector("ct-activation/nvfp4_local16_bf16")
    second, dtype = 1 / v["global_scale"], v["x"].dtype
    q = quantize(v["x"], LOCAL, v["scale"], second_scale=second)
    assert torch.equal(decode(q.codes, LOCAL.element), v["q"].float())
    real = dequantize(q.codes, q.scale, LOCAL, second_scale=second, dtype=dtype)
    assert torch.equal(real, v["fake_quant"])
    ours = quantize(v["x"], LOCAL, second_scale=second)
    other = ours.scale != v["scale"]
    zeros = ours.scale == 2.0**-9  # and groups too small for another scale
    assert (v["scale"][zeros] == 2.0**-3).all() and zeros.sum() == 32
    assert (other & ~zeros).sum() == 3
    assert torch.equal(ours.second_scale, second.view(1, 1))


def test_blocks_of_zeros_have_the_smallest_scale(vector):
    """Others store 1.0, 2^-6 or 2^-3 for them; all decode to zeros."""
    v = vector("nvfp4/modelopt_bf16")
    spec = parse_spec(NVFP4)
    zeros = tile_amax(v["w"], spec) == 0
    q = quantize(v["w"], spec)
    assert zeros.sum() == 8
    assert (q.scale[zeros] == 2.0**-9).all()
    assert (v["ckpt.weight_scale"].view(torch.float8_e4m3fn).float()[zeros] == 1).all()
    stored = encode_scale(q.scale, "float8_e4m3fn")
    same = Segment(spec=spec, codes=q.codes, scale=stored.float(), second_scale=q.second_scale)
    assert (same.dequantize()[zeros.repeat_interleave(16, 1)] == 0).all()
