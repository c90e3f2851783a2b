"""QuantizationArgs: every element, tile and zero point; every value that cannot be."""

from __future__ import annotations

from typing import Any

import pytest

from quantdock.configs.compressed_args import Args, read_activation, read_weight
from quantdock.configs.compressed_formats import FORMATS
from quantdock.errors import ConfigError, MethodNotYetError

FP8 = {"num_bits": 8, "type": "float", "symmetric": True}
MX = {**FP8, "strategy": "group", "group_size": 32, "scale_dtype": "torch.uint8"}
INT8 = {"num_bits": 8, "type": "int", "symmetric": True}
INT4 = {**INT8, "num_bits": 4, "strategy": "group", "group_size": 128}


NV = {**FP8, "num_bits": 4, "strategy": "tensor_group", "group_size": 16}
NV_FORM, MX4, MX6, MX8 = (
    "nvfp4-pack-quantized",
    "mxfp4-pack-quantized",
    "mxfp6-pack-quantized",
    "mxfp8-quantized",
)


def weight(args: dict[str, Any], form: str = "naive-quantized") -> str:
    return str(read_weight(Args(args, "group_0", "weights"), FORMATS[form]))


def activation(args: dict[str, Any], form: str = "naive-quantized") -> str:
    return str(read_activation(Args(args, "group_0", "input_activations"), FORMATS[form]))


@pytest.mark.parametrize(
    ("args", "spec"),
    [
        ({"strategy": "tensor"}, "fp8_e4m3[*x*]"),
        ({"strategy": "channel"}, "fp8_e4m3[1x*]"),
        ({"strategy": "Channel", "observer": "minmax", "actorder": None}, "fp8_e4m3[1x*]"),
        ({"strategy": "group", "group_size": 64}, "fp8_e4m3[1x64]"),
        ({"strategy": "block", "block_structure": [128, 64]}, "fp8_e4m3[128x64]"),
        ({"strategy": "block", "block_structure": "128x64"}, "fp8_e4m3[128x64]"),  # older files
        ({"strategy": None, "group_size": None}, "fp8_e4m3[*x*]"),
        ({"group_size": -1}, "fp8_e4m3[1x*]"),
        ({"group_size": 128}, "fp8_e4m3[1x128]"),
    ],
)
def test_floats(args: dict[str, Any], spec: str) -> None:
    assert weight({**FP8, **args}) == spec


@pytest.mark.parametrize(
    ("args", "spec"),
    [
        ({}, "int4[1x128]"),
        ({"num_bits": 3}, "int3[1x128]"),
        ({"symmetric": False}, "uint4[1x128]:zero"),
        ({"actorder": "group"}, "int4[1x128]:act-order"),
        ({"actorder": "Dynamic", "symmetric": False}, "uint4[1x128]:zero:act-order"),
        ({"actorder": True}, "int4[1x128]:act-order"),
        ({"actorder": "weight"}, "int4[1x128]"),
        ({"actorder": "static"}, "int4[1x128]"),
        ({"actorder": False}, "int4[1x128]"),
        ({"num_bits": None, "type": None, "strategy": "channel", "group_size": -1}, "int8[1x*]"),
        ({"strategy": "tensor", "group_size": None}, "int4[*x*]"),
    ],
)
def test_integers(args: dict[str, Any], spec: str) -> None:
    assert weight({**INT4, **args}) == spec


@pytest.mark.parametrize(
    ("args", "spec"),
    [
        ({**FP8, "strategy": "token", "dynamic": True}, "fp8_e4m3[1x*]:dynamic"),
        ({**FP8, "strategy": "tensor", "dynamic": True}, "fp8_e4m3[*x*]:dynamic"),
        (
            {**FP8, "strategy": "group", "group_size": 128, "dynamic": True},
            "fp8_e4m3[1x128]:dynamic",
        ),
        ({**FP8, "strategy": "tensor", "dynamic": False}, "fp8_e4m3[*x*]"),
        ({**INT8, "strategy": "token", "dynamic": True}, "int8[1x*]:dynamic"),
        (
            {**INT8, "strategy": "token", "dynamic": True, "symmetric": False},
            "int8[1x*]:zero:dynamic",
        ),
        ({**INT8, "strategy": "tensor", "dynamic": False}, "int8[*x*]"),
        ({**INT8, "strategy": "tensor", "symmetric": False}, "int8[*x*]:zero"),
    ],
)
def test_activations(args: dict[str, Any], spec: str) -> None:
    assert activation(args) == spec


@pytest.mark.parametrize(
    ("args", "form", "spec"),
    [
        (MX, MX8, "fp8_e4m3[1x32]:e8m0:ceil"),
        ({**MX, "num_bits": 6}, MX6, "fp6_e2m3[1x32]:e8m0:even"),
        ({**MX, "num_bits": 4}, MX4, "fp4_e2m1[1x32]:e8m0:even"),
        ({**MX, "num_bits": 4, "scale_dtype": None}, MX4, "fp4_e2m1[1x32]:e8m0:even"),
        (NV, NV_FORM, "fp4_e2m1[1x16]:e4m3:second[*x*]"),
        ({**NV, "scale_dtype": "torch.float8_e4m3fn"}, NV_FORM, "fp4_e2m1[1x16]:e4m3:second[*x*]"),
        ({**NV, "scale_dtype": "float8_e4m3fn"}, NV_FORM, "fp4_e2m1[1x16]:e4m3:second[*x*]"),
        ({**NV, "strategy": "group"}, NV_FORM, "fp4_e2m1[1x16]:e4m3"),  # no global scale
    ],
)
def test_a_format_says_what_the_scales_of_small_floats_are(
    args: dict[str, Any], form: str, spec: str
) -> None:
    assert weight(args, form) == spec


@pytest.mark.parametrize(
    ("args", "form", "spec"),
    [
        (MX, MX8, "fp8_e4m3[1x32]:e8m0:ceil:dynamic"),
        ({**MX, "scale_dtype": None}, MX8, "fp8_e4m3[1x32]:e8m0:ceil:dynamic"),
        ({**MX, "scale_dtype": None}, MX4, "fp8_e4m3[1x32]:dynamic"),
        (MX, MX6, "fp8_e4m3[1x32]:e8m0:ceil:dynamic"),
        ({**MX, "num_bits": 6}, MX6, "fp6_e2m3[1x32]:e8m0:even:dynamic"),
        ({**MX, "num_bits": 4, "scale_dtype": None}, MX4, "fp4_e2m1[1x32]:e8m0:even:dynamic"),
        ({**FP8, "strategy": "group", "group_size": 128}, MX4, "fp8_e4m3[1x128]:dynamic"),
        ({**FP8, "strategy": "token"}, NV_FORM, "fp8_e4m3[1x*]:dynamic"),
        ({**NV, "dynamic": "local"}, NV_FORM, "fp4_e2m1[1x16]:e4m3:dynamic:second[*x*]"),
        ({**NV, "dynamic": "Local"}, NV_FORM, "fp4_e2m1[1x16]:e4m3:dynamic:second[*x*]"),
        (NV, NV_FORM, "fp4_e2m1[1x16]:e4m3:dynamic"),  # nothing of it is stored
    ],
)
def test_inputs_in_small_floats(args: dict[str, Any], form: str, spec: str) -> None:
    assert activation({"dynamic": True, **args}, form) == spec


@pytest.mark.parametrize(
    ("args", "what"),
    [
        ({"num_bits": 5, "type": "float"}, "group_0 has weights in float5"),
        ({"num_bits": {"mlp": 4, "attn": 8}}, r"a num_bits for each module \(mlp, attn\)"),
        ({**FP8, "symmetric": False}, "group_0 has weights in floats with zero points"),
    ],
)
def test_kinds_to_come_are_named(args: dict[str, Any], what: str) -> None:
    with pytest.raises(MethodNotYetError, match=what) as caught:
        weight(args)
    assert "supported: weights in fp8, mxfp8, mxfp6, mxfp4, nvfp4 and integers" in str(caught.value)
    is_library = "num_bits" not in what  # it cannot read that either
    assert ("CompressedTensorsConfig(dequantize=True)" in caught.value.todo) is is_library
    assert caught.value.method == caught.value.asked == "compressed-tensors"


@pytest.mark.parametrize(
    ("args", "text"),
    [
        ({"num_bits": 9}, "num_bits is 9"),
        ({"num_bits": 9, "type": "float"}, "num_bits is 9"),
        ({"num_bits": 0}, "num_bits is 0"),
        ({"num_bits": "4"}, "num_bits is '4'"),
        ({"num_bits": True}, "num_bits is True"),
        ({"type": "fp"}, "type is 'fp'"),
        ({"strategy": "token"}, "strategy is 'token'"),
        ({"strategy": "tensor_group"}, "strategy is 'tensor_group'"),
        ({"group_size": None}, "group_size is None"),
        ({"group_size": 0}, "group_size is 0"),
        ({"group_size": 12.5}, "group_size is 12.5"),
        ({"strategy": "channel"}, "group_size is 128"),
        ({"block_structure": [1, 2]}, r"block_structure is \[1, 2\]"),
        ({"strategy": "block", "group_size": None}, "block_structure is None"),
        ({"dynamic": True}, "dynamic is True"),
        ({"dynamic": "local"}, "dynamic is 'local'"),
        ({"dynamic": "sometimes"}, "dynamic is 'sometimes'"),
        ({"strategy": "block", "group_size": None, "block_structure": "128"}, "block_structure is"),
        ({"actorder": "columns"}, "actorder is 'columns'"),
        ({"scale_dtype": "torch.int4"}, "scale_dtype is 'torch.int4'"),
        ({"actorder": "group", "strategy": "channel", "group_size": -1}, "actorder is 'group'"),
    ],
)
def test_impossible_weights_are_named(args: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=rf"^compressed-tensors: group_0\.weights: {text}"):
        weight({**INT4, **args})


@pytest.mark.parametrize(
    ("args", "text"),
    [
        ({**INT8, "strategy": "token"}, "strategy is 'token'"),
        ({**INT8, "strategy": "channel", "dynamic": True}, "strategy is 'channel'"),
        ({**INT8, "num_bits": 16, "strategy": "token", "dynamic": True}, "num_bits is 16"),
    ],
)
def test_impossible_activations_are_named(args: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=rf"group_0\.input_activations: {text}"):
        activation(args)


@pytest.mark.parametrize(
    ("args", "form", "text"),
    [
        ({**MX, "group_size": 16}, MX8, "group_size is 16[\\s\\S]*e8m0 scales of 32 columns"),
        ({**MX, "num_bits": 4, "group_size": 16}, MX4, "group_size is 16"),
        ({**MX, "strategy": "tensor_group"}, MX8, "strategy is 'tensor_group'"),
        ({**MX, "scale_dtype": "torch.float8_e4m3fn"}, MX4, "scale_dtype is 'torch.float8_e4m3fn'"),
        ({**NV, "group_size": 32}, NV_FORM, "group_size is 32[\\s\\S]*e4m3 scales of 16 columns"),
        ({**NV, "scale_dtype": "torch.uint8"}, NV_FORM, "scale_dtype is 'torch.uint8'"),
        ({**NV, "strategy": "channel", "group_size": None}, NV_FORM, "strategy is 'channel'"),
    ],
)
def test_weights_that_contradict_their_format_are_named(
    args: dict[str, Any], form: str, text: str
) -> None:
    with pytest.raises(ConfigError, match=rf"^compressed-tensors: group_0\.weights: {text}"):
        weight(args, form)


@pytest.mark.parametrize(
    ("args", "text"),
    [
        ({**NV, "dynamic": False}, "strategy is 'tensor_group'"),
        ({**MX, "dynamic": "local"}, "strategy is 'group'"),
        ({**MX, "dynamic": True, "group_size": 16}, "group_size is 16[\\s\\S]*exponent bytes"),
        (
            {**INT8, "strategy": "token", "dynamic": True, "scale_dtype": "torch.uint8"},
            "scale_dtype is 'torch.uint8'[\\s\\S]*integers are meant",
        ),
    ],
)
def test_inputs_that_contradict_themselves_are_named(args: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=rf"group_0\.input_activations: {text}"):
        activation(args, NV_FORM)
