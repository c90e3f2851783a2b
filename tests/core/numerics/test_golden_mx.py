"""Groups of 32 with power-of-two scales against other libraries; rows as in test_golden_fp8.

Groups with an amax below 2^-100 are left out: libraries differ in the scales they give to zeros and
to values near the smallest f32.
"""

from __future__ import annotations

import pytest
import torch

from quantdock.formats import parse_spec
from quantdock.numerics import dequantize, encode_scale, quantize

SAME = (0, 0, 0, 0)
CEIL, FLOOR, EVEN = (f"[1x32]:e8m0:{rounding}" for rounding in ("ceil", "floor", "even"))

SAME_RULE = [
    ("modelopt_bf16", f"fp8_e4m3{CEIL}"),
    ("modelopt_f32", f"fp8_e4m3{CEIL}"),
    ("quark_tritonkernels_e4m3_round_up_bf16", f"fp8_e4m3{CEIL}"),
    ("quark_tritonkernels_e4m3_round_up_f32", f"fp8_e4m3{CEIL}"),
    ("quark_tritonkernels_e5m2_round_up_bf16", f"fp8_e5m2{CEIL}"),
    ("quark_tritonkernels_e5m2_round_up_f32", f"fp8_e5m2{CEIL}"),
    ("torchao_e4m3_rceil_bf16", f"fp8_e4m3{CEIL}"),
    ("torchao_e4m3_rceil_f32", f"fp8_e4m3{CEIL}"),
    ("torchao_e5m2_rceil_bf16", f"fp8_e5m2{CEIL}"),
    ("torchao_e4m3_floor_f32", f"fp8_e4m3{FLOOR}"),
    ("torchao_e4m3_even_f32", f"fp8_e4m3{EVEN}"),
    ("torchao_e5m2_even_bf16", f"fp8_e5m2{EVEN}"),
    ("torchao_e5m2_even_f32", f"fp8_e5m2{EVEN}"),
]
# Rules that QuantSpec has no word for; their files decode all the same. torchao's "ceil" rounds
# amax itself up; "round_down" is not the floor of OCP MX.
OTHER_RULE = [
    ("torchao_e4m3_ceil_f32", f"fp8_e4m3{CEIL}", (26, 831, 0, 0)),
    ("torchao_e5m2_ceil_f32", f"fp8_e5m2{CEIL}", (31, 991, 0, 0)),
    ("quark_tritonkernels_e5m2_round_down_f32", f"fp8_e5m2{CEIL}", (40, 1272, 0, 0)),
]
# Of bf16 weights the library computes amax / 448 in bf16, and 6 of 384 powers differ.
COMPRESSED_TENSORS = [
    ("mxfp8_bf16", (6, 192, 0, 0)),
    ("mxfp8_f32", SAME),
    ("mxfp8a16_f32", SAME),
]


def _peer(v, peer):
    return peer(x=v["x"], codes=v["q"], scale=v["scale"], real=v["dequant"])


@pytest.mark.parametrize(("name", "spec"), SAME_RULE)
def test_mx_fp8_with_one_of_our_rules(vector, peer, compare, name, spec):
    assert compare(_peer(vector(f"mx-mxfp8/{name}"), peer), spec, 2.0**-100) == SAME


@pytest.mark.parametrize(("name", "spec", "difference"), OTHER_RULE)
def test_mx_fp8_with_another_rule(vector, peer, compare, name, spec, difference):
    assert compare(_peer(vector(f"mx-mxfp8/{name}"), peer), spec, 2.0**-100) == difference


@pytest.mark.parametrize(("name", "difference"), COMPRESSED_TENSORS)
def test_mx_fp8_compressed_tensors(vector, peer, compare, name, difference):
    v = vector(f"ct-mxfp8/{name}")
    codes, scale = v["ckpt.weight"], v["ckpt.weight_scale"]
    theirs = peer(x=v["weight"], codes=codes, scale=scale, real=v["dequant"])
    assert compare(theirs, f"fp8_e4m3{CEIL}") == difference


def test_mx_fp8_activations(vector, peer, compare):
    v = vector("ct-activation/mxfp8_group32_bf16")
    theirs = peer(x=v["x"], codes=v["q"], scale=v["scale"], real=v["fake_quant"])
    assert compare(theirs, f"fp8_e4m3{CEIL}") == SAME


def test_microxcaling_is_floor(vector):
    """Its "even" names the rounding of the elements; the scale is OCP MX's floor."""
    v = vector("mx-mxfp8/microxcaling_fp8_e4m3_even")
    spec = parse_spec(f"fp8_e4m3{FLOOR}")
    q = quantize(v["x"], spec)
    assert torch.equal(dequantize(q.codes, q.scale, spec), v["fake_quant"])


def test_tiny_groups_get_the_smallest_scale(vector):
    """torchao divides by 2^-126 and stores 2^-127, so that it decodes to half of what it meant."""
    v = vector("mx-mxfp8/torchao_e4m3_floor_f32")
    spec = parse_spec(f"fp8_e4m3{FLOOR}")
    q = quantize(v["x"][1:2], spec)
    assert encode_scale(q.scale, "uint8").tolist() == [[1, 1, 1, 1]]
    assert v["scale"][1].tolist() == [0, 0, 0, 0]
    assert torch.equal(q.codes.view(torch.uint8)[0], v["q"][1])
