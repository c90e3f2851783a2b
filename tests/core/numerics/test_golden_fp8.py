"""fp8 weights and activations against what other libraries made of the same values.

Each row: the vector, our spec of it, and how much differs: (scales, codes, codes computed with the
library's scale, real values). Zeros mean bit-equal. docs/numerics.md has the reasons of the rest.
"""

from __future__ import annotations

import pytest
import torch

from quantdock.formats import parse_spec
from quantdock.numerics import SMALLEST_SCALE, decode_scale, quantize, tile_amax

E4M3 = "fp8_e4m3"
SAME = (0, 0, 0, 0)

# The "f32scale" scales are 1 / (448 / amax), up to one ulp from amax / 448.
BLOCKS = [
    ("deepgemm_block128_ue8m0_ragged", f"{E4M3}[128x128]:e8m0:ceil", SAME),
    ("deepgemm_perchannelK128_ue8m0", f"{E4M3}[128x1]:e8m0:ceil", SAME),
    ("transformers_128x128_f32scale_bf16", f"{E4M3}[128x128]", (1, 0, 0, 0)),
    ("transformers_128x128_ue8m0_bf16", f"{E4M3}[128x128]:e8m0:ceil", SAME),
    ("transformers_1x128_f32scale_f32", f"{E4M3}[1x128]", (12, 0, 0, 0)),
    ("transformers_1x128_ue8m0_bf16", f"{E4M3}[1x128]:e8m0:ceil", SAME),
    ("transformers_64x32_f32scale_f32", f"{E4M3}[64x32]", (1, 0, 0, 0)),
    ("transformers_64x32_ue8m0_bf16", f"{E4M3}[64x32]:e8m0:ceil", SAME),
    ("transformers_64x32_ue8m0_f32", f"{E4M3}[64x32]:e8m0:ceil", SAME),
    ("transformers_tensor_ue8m0_bf16", f"{E4M3}[*x*]:e8m0:ceil", SAME),
    ("transformers_tensor_ue8m0_f32", f"{E4M3}[*x*]:e8m0:ceil", SAME),
]
EXPERTS = [
    ("transformers_128x128_moe_f32scale_bf16", f"{E4M3}[128x128]", (1, 1, 0, 0)),
    ("transformers_128x128_moe_ue8m0_bf16", f"{E4M3}[128x128]:e8m0:ceil", SAME),
]
TORCHAO = [
    ("block128_e4m3fn_f32", f"{E4M3}[128x128]", SAME),
    ("col_e4m3fn_f32", f"{E4M3}[*x1]", SAME),
    ("group1x128_e4m3fn_bf16", f"{E4M3}[1x128]", (113, 263, 0, 0)),  # amax / 448 in bf16
    ("group1x128_e4m3fn_f32", f"{E4M3}[1x128]", SAME),
    ("group1x128_e5m2_f32", "fp8_e5m2[1x128]", SAME),
    ("row_e4m3fn_f32", f"{E4M3}[1x*]", SAME),
    ("row_e5m2_f32", "fp8_e5m2[1x*]", SAME),
    ("tensor_e4m3fn_bf16", f"{E4M3}[*x*]", SAME),
    ("tensor_e4m3fn_f32", f"{E4M3}[*x*]", SAME),
    ("tensor_e5m2_f32", "fp8_e5m2[*x*]", SAME),
]
TOKEN_GROUPS = [
    ("deepgemm_g128_f32scale_f32", f"{E4M3}[1x128]"),
    ("deepgemm_g128_ue8m0_f32", f"{E4M3}[1x128]:e8m0:ceil"),
    ("deepgemm_g32_f32scale_bf16", f"{E4M3}[1x32]"),
    ("deepgemm_g32_ue8m0_bf16", f"{E4M3}[1x32]:e8m0:ceil"),
    ("deepgemm_g32_ue8m0_f32", f"{E4M3}[1x32]:e8m0:ceil"),
]
# bf16 vectors: the library also rounds x / scale to bf16 before it rounds to e4m3.
COMPRESSED_TENSORS = [
    ("fp8_block_bf16", f"{E4M3}[128x128]:bf16", (0, 1243, 1243, 0)),
    ("fp8_channel", f"{E4M3}[1x*]", SAME),
    ("fp8_dynamic_bf16", f"{E4M3}[1x*]:bf16", (0, 391, 391, 0)),
    ("fp8_f32", f"{E4M3}[*x*]", SAME),
    ("fp8_tensor", f"{E4M3}[*x*]", SAME),
]
ACTIVATIONS = [
    ("fp8_group128_f32", f"{E4M3}[1x128]", SAME),
    ("fp8_tensor_f32", f"{E4M3}[*x*]", SAME),
    ("fp8_tensor_bf16", f"{E4M3}[*x*]:bf16", (0, 129, 129, 0)),
    ("fp8_token_f32", f"{E4M3}[1x*]", SAME),
    ("fp8_token_bf16", f"{E4M3}[1x*]:bf16", (0, 75, 75, 0)),
]
MODELOPT = [
    ("fp8_pb_wo_bf16", f"{E4M3}[128x128]", SAME),
    ("fp8_pb_wo_f32", f"{E4M3}[128x128]", SAME),
    ("fp8_tensor_bf16", f"{E4M3}[*x*]", (0, 222, 222, 0)),
]


def _stored(vector, peer):
    """Return the peer of a vector in which ``ckpt.`` names are what the checkpoint stores."""
    return peer(
        x=vector.get("weight", vector.get("w")),
        codes=vector["ckpt.weight"],
        scale=vector["ckpt.weight_scale"],
        real=vector.get("dequant"),
    )


@pytest.mark.parametrize(("name", "spec", "difference"), BLOCKS)
def test_fp8_block(vector, peer, compare, name, spec, difference):
    v = vector(f"fp8-block/{name}")
    scale = v.get("scale_inv", v.get("scale"))
    theirs = peer(x=v["w"], codes=v["q"], scale=scale, real=v.get("dequant_f32"))
    assert compare(theirs, spec) == difference


@pytest.mark.parametrize(("name", "spec", "difference"), EXPERTS)
def test_fp8_block_experts(vector, peer, compare, name, spec, difference):
    v = vector(f"fp8-block/{name}")
    each = [
        compare(peer(x=w, codes=q, scale=s, real=real), spec)
        for w, q, s, real in zip(v["w"], v["q"], v["scale_inv"], v["dequant_f32"], strict=True)
    ]
    assert tuple(map(sum, zip(*each, strict=True))) == difference


def test_transformers_scales_are_one_ulp_away(vector):
    v = vector("fp8-block/transformers_1x128_f32scale_f32")
    spec = parse_spec(f"{E4M3}[1x128]")
    live = tile_amax(v["w"], spec) > 0
    ours = quantize(v["w"], spec).scale[live].view(torch.int32)
    assert (ours - v["scale_inv"][live].view(torch.int32)).abs().max() == 1
    assert torch.equal(1 / (448 / tile_amax(v["w"], spec)[live]), v["scale_inv"][live])


@pytest.mark.parametrize(("name", "spec"), TOKEN_GROUPS)
def test_fp8_token_group_where_amax_is_not_clamped(vector, peer, compare, name, spec):
    v = vector(f"fp8-token-group/{name}")
    theirs = peer(x=v["x"], codes=v["q"], scale=v["scale"])
    assert compare(theirs, spec, 1e-4) == SAME


def test_small_token_groups_keep_their_precision(vector):
    """DeepGEMM raises amax to 1e-4 there, and its codes lose bits; ours do not."""
    v = vector("fp8-token-group/deepgemm_g128_f32scale_f32")
    spec = parse_spec(f"{E4M3}[1x128]")
    amax = tile_amax(v["x"], spec)
    small = (amax < 1e-4) & (amax > 0)
    ours = quantize(v["x"], spec)
    assert small.sum() == 3
    assert torch.equal(v["scale"][small], torch.full((3,), 1e-4) / 448)
    assert torch.equal(ours.scale[small], amax[small] / 448)
    assert (ours.scale[amax == 0] == SMALLEST_SCALE).all()


@pytest.mark.parametrize(("name", "spec", "difference"), TORCHAO)
def test_fp8_torchao(vector, peer, compare, name, spec, difference):
    v = vector(f"fp8-torchao/{name}")
    theirs = peer(x=v["w"], codes=v["q"], scale=v["scale"], real=v["dequant"])
    assert compare(theirs, spec) == difference


def test_all_zero_groups_are_zeros_where_torchao_makes_nan(vector):
    v = vector("fp8-torchao/group1x128_e4m3fn_bf16")
    dead = (v["w"] == 0).all(dim=1)
    q = quantize(v["w"], parse_spec(f"{E4M3}[1x128]"))
    assert dead.sum() == 1
    assert v["dequant"][dead].isnan().all()
    assert (q.codes.view(torch.uint8)[dead] == 0).all()
    assert (q.scale[dead] == SMALLEST_SCALE).all()


@pytest.mark.parametrize(("name", "spec", "difference"), COMPRESSED_TENSORS)
def test_fp8_compressed_tensors(vector, peer, compare, name, spec, difference):
    theirs = _stored(vector(f"ct-float-quantized/{name}"), peer)
    assert compare(theirs, spec) == difference


@pytest.mark.parametrize(("name", "spec", "difference"), ACTIVATIONS)
def test_fp8_activations(vector, peer, compare, name, spec, difference):
    v = vector(f"ct-activation/{name}")
    theirs = peer(x=v["x"], codes=v["q"], scale=v["scale"], real=v["fake_quant"])
    assert compare(theirs, spec) == difference


@pytest.mark.parametrize(("name", "spec", "difference"), MODELOPT)
def test_fp8_modelopt(vector, peer, compare, name, spec, difference):
    theirs = _stored(vector(f"modelopt-weight/{name}"), peer)
    assert compare(theirs, spec) == difference


def test_the_bf16_differences_are_the_rounding_of_the_quotient(vector):
    v = vector("ct-float-quantized/fp8_dynamic_bf16")
    quotient = v["weight"] / v["ckpt.weight_scale"]
    assert quotient.dtype == torch.bfloat16
    theirs = quotient.clamp(-448, 448).to(torch.float8_e4m3fn).view(torch.uint8)
    assert torch.equal(theirs, v["ckpt.weight"])

    v = vector("modelopt-weight/fp8_tensor_bf16")
    quotient = (v["w"] / decode_scale(v["ckpt.weight_scale"])).to(torch.bfloat16)
    theirs = quotient.clamp(-448, 448).to(torch.float8_e4m3fn).view(torch.uint8)
    assert torch.equal(theirs, v["ckpt.weight"])
