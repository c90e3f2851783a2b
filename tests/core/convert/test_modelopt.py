"""ModelOpt's words for all layers, and for each."""

from __future__ import annotations

from quantdock.convert.modelopt import MODELOPT
from quantdock.schemes import parse_scheme

NVFP4 = parse_scheme("fp4_e2m1[1x16]:e4m3:second[*x*]")
FP8 = parse_scheme("fp8_e4m3[*x*] x fp8_e4m3[*x*]")


def test_one_algorithm_is_that_of_all_layers():
    assert MODELOPT.make_block({"a.b": NVFP4, "a.c": NVFP4}, ("lm_head",)) == {
        "quant_method": "modelopt",
        "producer": {"name": "quantdock"},
        "quant_algo": "W4A16_NVFP4",
        "group_size": 16,
        "ignore": ["lm_head"],
    }


def test_several_are_named_layer_by_layer():
    block = MODELOPT.make_block({"a.b": NVFP4, "a.c": FP8}, ("lm_head",))
    assert block["quant_algo"] == "MIXED_PRECISION"
    assert block["quantized_layers"] == {
        "a.b": {"quant_algo": "W4A16_NVFP4", "group_size": 16},
        "a.c": {"quant_algo": "FP8"},
    }
    assert MODELOPT.why_not({"a.b": NVFP4, "a.c": FP8}) == ()
