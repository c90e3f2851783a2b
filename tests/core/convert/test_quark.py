"""Quark's words for tensors, and layers that go by name."""

from __future__ import annotations

from quantdock.convert.quark import QUARK
from quantdock.schemes import parse_scheme

MXFP4 = parse_scheme("fp4_e2m1[1x32]:e8m0:even x fp4_e2m1[1x32]:e8m0:even:dynamic")
MXFP6 = parse_scheme("fp6_e3m2[1x32]:e8m0:floor")


def test_the_commonest_scheme_is_the_global_one():
    layers = {"a.0": MXFP4, "a.1": MXFP6, "a.2": MXFP4}
    block = QUARK.make_block(layers, ("lm_head",))
    assert block["global_quant_config"]["weight"]["dtype"] == "fp4"
    assert block["global_quant_config"]["input_tensors"]["is_dynamic"] is True
    assert list(block["layer_quant_config"]) == ["a.1"] and block["exclude"] == ["lm_head"]
    named = block["layer_quant_config"]["a.1"]
    assert named["weight"]["dtype"] == "fp6_e3m2" and named["input_tensors"] is None
    assert named["weight"]["scale_calculation_mode"] == "floor"
    assert QUARK.why_not(layers) == ()
