"""QuantizationArgs: every element, tile and zero point; every value that cannot be."""

from __future__ import annotations

from typing import Any

import pytest

from quantdock.configs.compressed_args import Args, read_activation, read_weight
from quantdock.errors import ConfigError, MethodNotYetError

FP8 = {"num_bits": 8, "type": "float", "symmetric": True}
MX = {**FP8, "strategy": "group", "group_size": 32, "scale_dtype": "torch.uint8"}
INT8 = {"num_bits": 8, "type": "int", "symmetric": True}
INT4 = {**INT8, "num_bits": 4, "strategy": "group", "group_size": 128}


def weight(args: dict[str, Any], micro: bool = False) -> str:
    return str(read_weight(Args(args, "group_0", "weights"), micro=micro))


def activation(args: dict[str, Any], micro: bool = False) -> str:
    return str(read_activation(Args(args, "group_0", "input_activations"), micro=micro))


@pytest.mark.parametrize(
    ("args", "spec"),
    [
        ({"strategy": "tensor"}, "fp8_e4m3[*x*]"),
        ({"strategy": "channel"}, "fp8_e4m3[1x*]"),
        ({"strategy": "Channel", "observer": "minmax", "actorder": None}, "fp8_e4m3[1x*]"),
        ({"strategy": "group", "group_size": 64}, "fp8_e4m3[1x64]"),
        ({"strategy": "block", "block_structure": [128, 64]}, "fp8_e4m3[128x64]"),
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


def test_mxfp8_has_exponent_bytes_on_both_sides() -> None:
    assert weight(MX, micro=True) == "fp8_e4m3[1x32]:e8m0:ceil"
    assert activation({**MX, "dynamic": True}, micro=True) == "fp8_e4m3[1x32]:e8m0:ceil:dynamic"


@pytest.mark.parametrize(
    ("args", "what"),
    [
        ({"num_bits": 4, "type": "float"}, "group_0 has weights in float4"),
        ({"num_bits": {"mlp": 4, "attn": 8}}, r"a num_bits for each module \(mlp, attn\)"),
        ({**FP8, "symmetric": False}, "group_0 has weights in floats with zero points"),
        ({**FP8, "dynamic": "local"}, "group_0 has weights with dynamic = 'local'"),
    ],
)
def test_kinds_to_come_are_named(args: dict[str, Any], what: str) -> None:
    with pytest.raises(MethodNotYetError, match=what) as caught:
        weight(args)
    assert "supported: weights in fp8, mxfp8 and integers" in str(caught.value)
    is_library = "num_bits" not in what  # it cannot read that either
    assert ("CompressedTensorsConfig(dequantize=True)" in caught.value.todo) is is_library
    assert caught.value.method == caught.value.asked == "compressed-tensors"


@pytest.mark.parametrize(
    ("args", "text"),
    [
        ({"num_bits": 9}, "num_bits is 9"),
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
        ({"actorder": "columns"}, "actorder is 'columns'"),
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


def test_mxfp8_has_groups_of_32() -> None:
    with pytest.raises(ConfigError, match=r"group_size is 16[\s\S]*the format is mxfp8-quantized"):
        weight({**MX, "group_size": 16}, micro=True)
