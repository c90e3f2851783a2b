"""Quark's words for one layer: which are understood, and what is said of the others."""

from __future__ import annotations

from typing import Any

import pytest

from quantdock.configs.quark_spec import read_layer
from quantdock.errors import ConfigError, MethodNotYetError

INT8 = {"dtype": "int8", "qscheme": "per_tensor", "symmetric": True, "is_dynamic": False}
INT4 = {"dtype": "int4", "qscheme": "per_group", "group_size": 32, "ch_axis": -1, "symmetric": True}
FP8 = {"dtype": "fp8_e4m3", "qscheme": "per_tensor", "is_dynamic": False, "symmetric": True}
FP4 = {"dtype": "fp4", "qscheme": "per_group", "group_size": 32, "ch_axis": -1}
MX = {**FP4, "scale_format": "e8m0", "scale_calculation_mode": "even"}
CHANNEL = {"dtype": "int4", "qscheme": "per_channel", "ch_axis": 0, "is_dynamic": False}
MXFP4 = "fp4_e2m1[1x32]:e8m0:even"


def scheme(weight: Any, activation: Any = None) -> str:
    said = read_layer({"weight": weight, "input_tensors": activation}, "global_quant_config")
    assert said is not None
    return str(said.scheme)


@pytest.mark.parametrize(
    ("weight", "activation", "expected"),
    [
        (INT8, INT8, "int8[*x*] x int8[*x*]"),
        (INT8, {**INT8, "symmetric": False}, "int8[*x*] x int8[*x*]:zero"),
        ({**INT8, "qscheme": "per_channel", "ch_axis": 0}, None, "int8[1x*]"),
        ({**INT8, "symmetric": False}, None, "uint8[*x*]:zero"),
        (INT4, None, "int4[1x32]"),
        ({**INT4, "symmetric": False}, None, "uint4[1x32]:zero"),
        ({**INT4, "dtype": "uint4", "symmetric": False}, None, "uint4[1x32]:zero"),
        ({**INT4, "group_size": -1}, None, "int4[1x*]"),
        ({**INT4, "qscheme": "per_channel", "ch_axis": 0}, None, "int4[1x*]"),
        (FP8, FP8, "fp8_e4m3[*x*] x fp8_e4m3[*x*]"),
        (FP8, {**FP8, "is_dynamic": True}, "fp8_e4m3[*x*] x fp8_e4m3[*x*]:dynamic"),
        (
            {**FP8, "qscheme": "per_channel", "ch_axis": 0},
            {**FP8, "qscheme": "per_channel", "ch_axis": 1, "is_dynamic": True},
            "fp8_e4m3[1x*] x fp8_e4m3[1x*]:dynamic",
        ),
        (
            {**FP8, "qscheme": "per_block", "block_size": [128, 128]},
            {**FP8, "qscheme": "per_group", "group_size": 128, "is_dynamic": True},
            "fp8_e4m3[128x128] x fp8_e4m3[1x128]:dynamic",
        ),
        (INT8, {"dtype": "bfloat16"}, "int8[*x*]"),
        (MX, {**MX, "is_dynamic": True}, f"{MXFP4} x {MXFP4}:dynamic"),
        (FP4, {**FP4, "is_dynamic": True}, f"{MXFP4} x {MXFP4}:dynamic"),
        (MX, None, MXFP4),
        (MX, FP8, f"{MXFP4} x fp8_e4m3[*x*]"),
        ({**MX, "dtype": "fp6_e2m3"}, None, "fp6_e2m3[1x32]:e8m0:even"),
        (
            {**MX, "dtype": "fp6_e3m2", "scale_calculation_mode": "floor"},
            {**MX, "dtype": "fp8_e4m3", "is_dynamic": True},
            "fp6_e3m2[1x32]:e8m0:floor x fp8_e4m3[1x32]:e8m0:even:dynamic",
        ),
        ({**MX, "dtype": "fp8_e4m3"}, None, "fp8_e4m3[1x32]:e8m0:even"),
        (
            [FP8, CHANNEL],
            {**FP8, "is_dynamic": True},
            "int4[1x*]:second[*x*] x fp8_e4m3[*x*]:dynamic",
        ),
    ],
)
def test_encodings(weight: Any, activation: Any, expected: str) -> None:
    if activation == {"dtype": "bfloat16"}:
        activation = {**activation, "qscheme": "per_tensor"}
    assert scheme(weight, activation) == expected


def test_a_layer_without_a_weight_spec_stays_plain() -> None:
    assert read_layer({"weight": None, "input_tensors": FP8}, "layer_quant_config['*']") is None


@pytest.mark.parametrize(
    ("weight", "activation", "text"),
    [
        ({**FP4, "group_size": 16}, None, "is fp4 per_group of 16 with e8m0 scales, not of 32"),
        ({**FP4, "qscheme": "per_channel"}, None, "is fp4 per_channel of 32 with e8m0 scales"),
        ({**FP4, "scale_format": "e4m3"}, None, "is fp4 per_group with scale_format = 'e4m3'"),
        ({**FP4, "dtype": "mx", "mx_element_dtype": "fp4"}, None, "is mx per_group"),
        (MX, MX, "input_tensors is fp4 per_group with static scales"),
        (
            MX,
            {**MX, "is_dynamic": True, "scale_calculation_mode": "ceil"},
            "is fp4 per_group with scale_calculation_mode = 'ceil'",
        ),
        ({**INT4, "dtype": "int3"}, None, "is int3 per_group"),
        ({**INT4, "scale_format": "e8m0"}, None, "is int4 per_group with scale_format = 'e8m0'"),
        ({**INT4, "is_scale_quant": True}, None, "scales that are quantized themselves"),
        ([FP8, INT4], FP8, "has 2 levels (fp8_e4m3 per_tensor, int4 per_group)"),
        ([FP8, {**CHANNEL, "symmetric": False}], FP8, "has 2 levels"),
        (FP8, [FP8, FP8], "input_tensors has 2 levels"),
        ({**INT8, "qscheme": "per_channel", "ch_axis": 1}, None, "along ch_axis = 1"),
        ({**INT4, "ch_axis": 0}, None, "per_group along ch_axis = 0"),
        ({**INT8, "qscheme": "per_block", "block_size": [64, 64]}, None, "is int8 per_block"),
        (
            {**INT4, "symmetric": False, "zero_point_type": "float32"},
            None,
            "zero points in float32",
        ),
        (INT8, {**INT8, "qscheme": "per_channel"}, "is int8 per_channel with static scales"),
        (FP8, {**INT4, "is_dynamic": True}, "input_tensors is int4 per_group"),
    ],
)
def test_other_encodings_are_named_with_a_remedy(weight: Any, activation: Any, text: str) -> None:
    with pytest.raises(MethodNotYetError) as caught:
        scheme(weight, activation)
    assert text in str(caught.value)
    assert "global_quant_config." in caught.value.why[0]
    assert "quantization='fp8_per_channel'" in caught.value.todo


@pytest.mark.parametrize("role", ["bias", "output_tensors"])
def test_other_tensors_that_are_quantized_are_refused(role: str) -> None:
    with pytest.raises(MethodNotYetError, match=rf"global_quant_config\.{role} is quantized"):
        read_layer({"weight": INT8, role: INT8}, "global_quant_config")
    read_layer(
        {"weight": INT8, "output_tensors": FP8}, "layer_quant_config['*k_proj']", outputs=True
    )


@pytest.mark.parametrize(
    ("weight", "text"),
    [
        ({"qscheme": "per_tensor"}, "dtype is None"),
        ({"dtype": "int8"}, "qscheme is None"),
        ({"dtype": "int8", "qscheme": "per_row"}, "qscheme is 'per_row'"),
        ({**INT4, "group_size": None}, "group_size is None"),
        ({**INT4, "group_size": 0}, "group_size is 0"),
        ({**FP8, "qscheme": "per_block"}, "block_size is None"),
        ({**INT8, "is_dynamic": True}, "is_dynamic is True"),
        ({**MX, "scale_calculation_mode": "odd"}, "scale_calculation_mode is 'odd'"),
        ({**INT8, "symmetric": "yes"}, "symmetric is 'yes'"),
    ],
)
def test_impossible_fields_name_field_and_value(weight: Any, text: str) -> None:
    with pytest.raises(ConfigError, match=r"quark: global_quant_config\.weight: ") as caught:
        scheme(weight)
    assert text in str(caught.value)
