"""One group of a compressed-tensors block: every fp8 form, and the name of what is to come."""

from __future__ import annotations

from typing import Any

import pytest

from quantdock.configs.compressed_groups import read_group
from quantdock.errors import ConfigError, MethodNotYetError

FP8 = {"num_bits": 8, "type": "float", "symmetric": True}
TOKEN = {**FP8, "strategy": "token", "dynamic": True}
MX = {**FP8, "strategy": "group", "group_size": 32, "scale_dtype": "torch.uint8"}


def read(
    weights: Any, inputs: Any = None, form: str | None = "float-quantized", **more: Any
) -> Any:
    group = {"targets": ["Linear"], "weights": weights, "input_activations": inputs, **more}
    return read_group("group_0", group, form)


@pytest.mark.parametrize(
    ("weights", "spec"),
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
def test_weights(weights: dict[str, Any], spec: str) -> None:
    group = read({**FP8, **weights})
    assert (str(group.weight), group.activation) == (spec, None)


@pytest.mark.parametrize(
    ("inputs", "spec"),
    [
        (TOKEN, "fp8_e4m3[1x*]:dynamic"),
        ({**FP8, "strategy": "tensor", "dynamic": True}, "fp8_e4m3[*x*]:dynamic"),
        (
            {**FP8, "strategy": "group", "group_size": 128, "dynamic": True},
            "fp8_e4m3[1x128]:dynamic",
        ),
        ({**FP8, "strategy": "tensor", "dynamic": False}, "fp8_e4m3[*x*]"),
    ],
)
def test_activations(inputs: dict[str, Any], spec: str) -> None:
    assert str(read({**FP8, "strategy": "channel"}, inputs).activation) == spec


def test_mxfp8_has_exponent_bytes_on_both_sides() -> None:
    for form, more in (("mxfp8-quantized", {}), (None, {"format": "mxfp8-quantized"})):
        group = read(MX, {**MX, "dynamic": True}, form, **more)
        assert str(group.weight) == "fp8_e4m3[1x32]:e8m0:ceil"
        assert str(group.activation) == "fp8_e4m3[1x32]:e8m0:ceil:dynamic"


@pytest.mark.parametrize(
    ("weights", "inputs", "form", "what"),
    [
        ({"num_bits": 4, "type": "int"}, None, "pack-quantized", "is stored as pack-quantized"),
        ({"num_bits": 4, "type": "float"}, None, "float-quantized", "has weights in float4"),
        ({"num_bits": 8, "type": "int"}, None, "naive-quantized", "has weights in int8"),
        ({**FP8, "symmetric": False}, None, "float-quantized", "has weights with zero points"),
        (FP8, {"num_bits": 8, "type": "int"}, "float-quantized", "has input_activations in int8"),
        (FP8, {**FP8, "dynamic": "local"}, "float-quantized", "with dynamic = 'local'"),
        (None, TOKEN, "float-quantized", "quantizes no weights"),
        (FP8, None, None, "is stored as None"),
    ],
)
def test_kinds_to_come_are_named(weights: Any, inputs: Any, form: str | None, what: str) -> None:
    with pytest.raises(MethodNotYetError) as caught:
        read(weights, inputs, form)
    assert f"group_0 {what}" in str(caught.value) or what in str(caught.value)
    assert "supported: fp8 and mxfp8 weights" in str(caught.value)
    assert "CompressedTensorsConfig(dequantize=True)" in caught.value.todo
    assert caught.value.method == caught.value.asked == "compressed-tensors"


def test_presets_and_output_activations_are_to_come() -> None:
    with pytest.raises(MethodNotYetError, match="W4A16 is a list of targets for a preset"):
        read_group("W4A16", ["Linear"], None)
    with pytest.raises(MethodNotYetError, match="quantizes the outputs of layers"):
        read(FP8, output_activations=TOKEN)


@pytest.mark.parametrize(
    ("weights", "inputs", "form", "text"),
    [
        ({**FP8, "strategy": "token"}, None, "float-quantized", "strategy is 'token'"),
        ({**FP8, "strategy": "block"}, None, "float-quantized", "block_structure is None"),
        ({**FP8, "dynamic": True}, None, "float-quantized", "weights: dynamic is True"),
        ({**MX, "group_size": 16}, None, "mxfp8-quantized", "group_size is 16"),
        ("fp8", None, "float-quantized", "weights is 'fp8'"),
        (FP8, {**FP8, "strategy": "token"}, "float-quantized", "static activations have one scale"),
    ],
)
def test_impossible_values_are_named(weights: Any, inputs: Any, form: str, text: str) -> None:
    with pytest.raises(ConfigError, match=r"compressed-tensors: group_0") as caught:
        read(weights, inputs, form)
    assert text in str(caught.value)
