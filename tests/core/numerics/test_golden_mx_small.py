"""MXFP4, MXFP6 and MXINT8 against other libraries; rows as in test_golden_fp8.

Groups with an amax below 2^-100 are left out, as in test_golden_mx.
"""

from __future__ import annotations

import pytest
import torch

from quantdock.formats import parse_spec
from quantdock.numerics import (
    SMALLEST_SCALE,
    decode,
    decode_mx_scale,
    dequantize,
    encode_mx_scale,
    expand_scale,
    quantize,
    unpack_bytes,
)

SAME = (0, 0, 0, 0)
SMALLEST = 2.0**-100
CEIL, FLOOR, EVEN = (f"[1x32]:e8m0:{rounding}" for rounding in ("ceil", "floor", "even"))

SAME_RULE = [
    ("mx-mxfp4/torchao_e2m1_even_bf16", f"fp4_e2m1{EVEN}"),
    ("mx-mxfp4/torchao_e2m1_floor_f32", f"fp4_e2m1{FLOOR}"),
    ("mx-mxfp4/torchao_e2m1_rceil_bf16", f"fp4_e2m1{CEIL}"),
    ("mx-mxfp6/torchao_e2m3_even_f32", f"fp6_e2m3{EVEN}"),
    ("mx-mxfp6/torchao_e2m3_floor_bf16", f"fp6_e2m3{FLOOR}"),
    ("mx-mxfp6/torchao_e2m3_floor_f32", f"fp6_e2m3{FLOOR}"),
    ("mx-mxfp6/torchao_e3m2_even_bf16", f"fp6_e3m2{EVEN}"),
    ("mx-mxfp6/torchao_e3m2_even_f32", f"fp6_e3m2{EVEN}"),
    ("mx-mxfp6/torchao_e3m2_floor_bf16", f"fp6_e3m2{FLOOR}"),
    ("mx-mxfp6/torchao_e3m2_floor_f32", f"fp6_e3m2{FLOOR}"),
    ("mx-mxfp6/torchao_e3m2_rceil_f32", f"fp6_e3m2{CEIL}"),
]
# Rules for the scale that QuantSpec has no word for; their files decode all the same.
OTHER_RULE = [
    ("mx-mxfp6/torchao_e2m3_ceil_f32", f"fp6_e2m3{CEIL}", (32, 971, 0, 0)),
    ("mx-mxfp6/torchao_e3m2_ceil_bf16", f"fp6_e3m2{CEIL}", (27, 861, 0, 0)),
    ("mx-mxfp4/quark_tritonkernels_e2m1_round_down_f32", f"fp4_e2m1{CEIL}", (39, 1039, 17, 0)),
]
# The same scales; codes differ at ties only: toward zero, or away from it.
OTHER_TIES = [
    ("modelopt_bf16", 10, -1),
    ("modelopt_f32", 3, -1),
    ("quark_tritonkernels_e2m1_round_up_bf16", 23, 1),
    ("quark_tritonkernels_e2m1_round_up_f32", 17, 1),
]


def made(v, peer):
    codes = v["q"] if v["q"].shape == v["x"].shape else unpack_bytes(v["q"], bits=4)
    return peer(x=v["x"], codes=codes, scale=v["scale"], real=v["dequant"])


@pytest.mark.parametrize(("name", "spec"), SAME_RULE)
def test_with_one_of_our_rules(vector, peer, compare, name, spec):
    assert compare(made(vector(name), peer), spec, SMALLEST) == SAME


@pytest.mark.parametrize(("name", "spec", "difference"), OTHER_RULE)
def test_with_another_rule(vector, peer, compare, name, spec, difference):
    assert compare(made(vector(name), peer), spec, SMALLEST) == difference


@pytest.mark.parametrize(("name", "codes", "direction"), OTHER_TIES)
def test_with_other_ties(vector, peer, compare, name, codes, direction):
    theirs = made(vector(f"mx-mxfp4/{name}"), peer)
    text = f"fp4_e2m1{CEIL}"
    assert compare(theirs, text, SMALLEST) == (0, codes, codes, 0)
    spec = parse_spec(text)
    ours = quantize(theirs.x, spec, theirs.scale)
    other = decode(theirs.codes, spec.element)
    value = theirs.x.float() / expand_scale(ours.scale, spec, *theirs.x.shape)
    mine = decode(ours.codes, spec.element)
    at = mine != other
    assert torch.equal(((mine + other) / 2)[at], value[at])
    assert ((other.abs() - mine.abs())[at] * direction > 0).all()


@pytest.mark.parametrize(
    ("name", "element", "differ"),
    [
        ("mx-mxfp4/microxcaling_fp4_e2m1_even", "fp4_e2m1", 0),
        ("mx-mxfp6/microxcaling_fp6_e2m3_even", "fp6_e2m3", 0),
        ("mx-mxfp6/microxcaling_fp6_e2m3_nearest", "fp6_e2m3", 2),
        ("mx-mxint8/microxcaling_int8_even", "int8", 0),
    ],
)
def test_microxcaling_is_floor(vector, name, element, differ):
    """Its word names the rounding of elements: "even" is ours, "nearest" takes ties away from 0."""
    v, spec = vector(name), parse_spec(f"{element}{FLOOR}")
    q = quantize(v["x"], spec)
    real = dequantize(q.codes, q.scale, spec)
    assert (real != v["fake_quant"]).sum() == differ


@pytest.mark.parametrize(
    ("name", "element"),
    [
        ("mx-mxfp4/microxcaling_fp4_e2m1_floor", "fp4_e2m1"),
        ("mx-mxfp6/microxcaling_fp6_e3m2_floor", "fp6_e3m2"),
        ("mx-mxint8/microxcaling_int8_floor", "int8"),
    ],
)
def test_values_of_truncating_libraries_are_ours_of_the_same_scales(vector, name, element):
    v, spec = vector(name), parse_spec(f"{element}{FLOOR}")
    scale = quantize(v["x"], spec).scale
    q = quantize(v["fake_quant"], spec, scale)
    assert torch.equal(dequantize(q.codes, scale, spec), v["fake_quant"])


@pytest.mark.parametrize("name", ["mxfp4_f32", "mxfp4a16_bf16", "mxfp4a16_f32"])
def test_mxfp4_is_as_compressed_tensors_writes_it(vector, peer, compare, name):
    v = vector(f"ct-mxfp4/{name}")
    codes, scale = unpack_bytes(v["ckpt.weight_packed"], bits=4), v["ckpt.weight_scale"]
    theirs = peer(x=v["weight"], codes=codes, scale=scale, real=v["dequant"])
    assert compare(theirs, f"fp4_e2m1{EVEN}") == SAME


def test_mxfp6_is_as_compressed_tensors_writes_it(vector, peer, compare):
    v = vector("ct-mxfp6/mxfp6a16_bf16")
    codes, scale = unpack_bytes(v["ckpt.weight_packed"], bits=6), v["ckpt.weight_scale"]
    theirs = peer(x=v["weight"], codes=codes, scale=scale, real=v["dequant"])
    assert compare(theirs, f"fp6_e2m3{EVEN}") == SAME


@pytest.mark.parametrize("name", ["mxfp4_group32_bf16", "mxfp4_group32_f32"])
def test_activations_in_mxfp4(vector, name):
    v, spec = vector(f"ct-activation/{name}"), parse_spec(f"fp4_e2m1{EVEN}:dynamic")
    q = quantize(v["x"], spec)
    zeros = q.scale == SMALLEST_SCALE  # there it stores 2^-127
    assert torch.equal(q.scale[~zeros], v["scale"].float()[~zeros])
    assert torch.equal(decode(q.codes, spec.element), v["q"].float())
    real = dequantize(q.codes, q.scale, spec, dtype=v["x"].dtype)
    assert torch.equal(real, v["fake_quant"])


def test_deepgemm_has_its_ties_toward_zero_and_no_negative_zero(vector):
    v, spec = vector("fp4-token-group/deepgemm_g16_ue8m0"), parse_spec("fp4_e2m1[1x16]:ceil")
    codes = unpack_bytes(v["packed"], bits=4)
    assert torch.equal(dequantize(codes, v["scale"], spec), v["dequant"])
    theirs = decode(codes, spec.element)
    q = quantize(v["x"], spec, v["scale"])
    ours = decode(q.codes, spec.element)
    at = ours != theirs
    value = v["x"].float() / expand_scale(v["scale"], spec, *v["x"].shape)
    assert torch.equal(((ours + theirs) / 2)[at], value[at])
    assert (theirs.abs()[at] < ours.abs()[at]).all()
    assert not torch.signbit(theirs[theirs == 0]).any()


def test_bytes_of_mxint8_mean_two_to_the_six_less(vector):
    """OCP MX 1.0, 5.3.3: the codes of MXINT8 have an implied scale of 2^-6."""
    v, spec = vector("mx-mxint8/microxcaling_int8_even"), parse_spec(f"int8{FLOOR}")
    scale = quantize(v["x"], spec).scale
    stored = encode_mx_scale(scale, "int8")
    assert torch.equal(decode_mx_scale(stored, "int8"), scale)
    group = v["x"][2, :32].abs().max()  # 1000: between 2^9 and 2^10
    assert group == 1000 and stored[2, 0] == 127 + 9 and scale[2, 0] == 2.0 ** (9 - 6)
    assert torch.equal(encode_mx_scale(scale, "fp4_e2m1") + 6, stored)
