"""Quark's words for one layer: which are understood, and what is said of the others."""

from __future__ import annotations

from typing import Any

import pytest

from quantdock.configs.quark_spec import read_layer
from quantdock.errors import ConfigError, MethodNotYetError

INT8 = {"dtype": "int8", "qscheme": "per_tensor", "symmetric": True, "is_dynamic": False}
INT4 = {"dtype": "int4", "qscheme": "per_group", "group_size": 32, "ch_axis": -1, "symmetric": True}
FP8 = {"dtype": "fp8_e4m3", "qscheme": "per_tensor", "is_dynamic": False, "symmetric": True}


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
        ({"dtype": "fp4", "qscheme": "per_group", "group_size": 32}, None, "is fp4 per_group"),
        ({"dtype": "fp6_e2m3", "qscheme": "per_group"}, None, "is fp6_e2m3 per_group"),
        ({**INT4, "dtype": "int3"}, None, "is int3 per_group"),
        ({**FP8, "qscheme": "per_group", "scale_format": "e8m0"}, None, "scale_format = 'e8m0'"),
        ({**INT4, "is_scale_quant": True}, None, "scales that are quantized themselves"),
        ([FP8, {**INT8, "dtype": "int4"}], FP8, "has 2 levels (fp8_e4m3, int4)"),
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
        ({**INT8, "symmetric": "yes"}, "symmetric is 'yes'"),
    ],
)
def test_impossible_fields_name_field_and_value(weight: Any, text: str) -> None:
    with pytest.raises(ConfigError, match=r"quark: global_quant_config\.weight: ") as caught:
        scheme(weight)
    assert text in str(caught.value)
