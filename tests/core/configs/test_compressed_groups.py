"""One group of a compressed-tensors block: every format, every preset."""

from __future__ import annotations

from typing import Any

import pytest

from quantdock.configs.compressed_groups import Group, read_group
from quantdock.configs.compressed_presets import PRESETS
from quantdock.errors import ConfigError, MethodNotYetError

FP8 = {"num_bits": 8, "type": "float", "symmetric": True, "strategy": "channel"}
MX = {**FP8, "strategy": "group", "group_size": 32, "scale_dtype": "torch.uint8"}
MX6, MX4 = {**MX, "num_bits": 6}, {**MX, "num_bits": 4}
NV = {**FP8, "num_bits": 4, "strategy": "tensor_group", "group_size": 16}
INT4 = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 128}
INT8 = {"num_bits": 8, "type": "int", "strategy": "channel"}
TOKEN = {**INT8, "strategy": "token", "dynamic": True}
STATIC = {**FP8, "strategy": "tensor", "dynamic": False}
FP8_TOKEN = {**FP8, "strategy": "token", "dynamic": True}


def read(weights: Any, inputs: Any = None, form: str | None = None, **more: Any) -> Group:
    group = {"targets": ["Linear"], "weights": weights, "input_activations": inputs, **more}
    return read_group("group_0", group, form)


@pytest.mark.parametrize(
    ("weights", "form", "storage"),
    [
        (FP8, "float-quantized", "floats"),
        (FP8, "naive-quantized", "floats"),
        (FP8, None, "floats"),
        (MX, "mxfp8-quantized", "floats"),
        (MX6, "mxfp6-pack-quantized", "bytes"),
        (MX4, "mxfp4-pack-quantized", "bytes"),
        (NV, "nvfp4-pack-quantized", "bytes"),
        (INT8, "int-quantized", "integers"),
        (INT8, "naive-quantized", "integers"),
        (INT4, "pack-quantized", "words"),
        (INT4, None, "words"),
    ],
)
def test_a_format_and_the_type_of_its_weights_say_how_codes_are_stored(
    weights: dict[str, Any], form: str | None, storage: str
) -> None:
    assert read(weights, form=form).storage == storage


def test_what_is_not_said_is_what_the_library_would_choose() -> None:
    assert str(read(MX).scheme) == "fp8_e4m3[1x32]:e8m0:ceil"
    assert str(read(MX6).scheme) == "fp6_e2m3[1x32]:e8m0:even"
    assert str(read({**MX4, "scale_dtype": None}).scheme) == "fp4_e2m1[1x32]:e8m0:even"
    assert str(read(NV).scheme) == "fp4_e2m1[1x16]:e4m3:second[*x*]"
    assert read(INT8, TOKEN).storage == "integers"


def test_a_groups_own_format_wins() -> None:
    assert read(INT4, form="mixed-precision", format="pack-quantized").storage == "words"
    assert read(INT8, form="pack-quantized", format="int-quantized").storage == "integers"


@pytest.mark.parametrize("form", ["dense", "fakequant"])
def test_uncompressed_weights_are_plain(form: str) -> None:
    group = read(INT8, TOKEN, form)
    assert (group.scheme, group.storage) == (None, "plain")


# The schemes of compressed-tensors 0.20.1.
@pytest.mark.parametrize(
    ("name", "scheme", "storage"),
    [
        ("W4A16", "int4[1x128]", "words"),
        ("W8A16", "int8[1x128]", "words"),
        ("W3A16", "int3[1x128]", "words"),
        ("W4A16_ASYM", "uint4[1x128]:zero", "words"),
        ("W8A8", "int8[1x*] x int8[1x*]:dynamic", "integers"),
        ("INT8", "int8[1x*] x int8[1x*]:dynamic", "integers"),
        ("W4A8", "int4[1x128] x int8[1x*]:dynamic", "integers"),
        ("W4AFP8", "int4[1x128] x fp8_e4m3[1x*]:dynamic", "integers"),
        ("FP8", "fp8_e4m3[*x*] x fp8_e4m3[*x*]", "floats"),
        ("fp8_dynamic", "fp8_e4m3[1x*] x fp8_e4m3[1x*]:dynamic", "floats"),
        ("FP8_BLOCK", "fp8_e4m3[128x128] x fp8_e4m3[1x128]:dynamic", "floats"),
        ("MXFP8", "fp8_e4m3[1x32]:e8m0:ceil x fp8_e4m3[1x32]:e8m0:ceil:dynamic", "floats"),
        ("MXFP8A16", "fp8_e4m3[1x32]:e8m0:ceil", "floats"),
        ("MXFP6A16", "fp6_e2m3[1x32]:e8m0:even", "bytes"),
        ("MXFP6A8", "fp6_e2m3[1x32]:e8m0:even x fp8_e4m3[1x32]:e8m0:ceil:dynamic", "bytes"),
        ("MXFP4", "fp4_e2m1[1x32]:e8m0:even x fp4_e2m1[1x32]:e8m0:even:dynamic", "bytes"),
        ("MXFP4A16", "fp4_e2m1[1x32]:e8m0:even", "bytes"),
        ("MXFP4xFP8", "fp4_e2m1[1x32]:e8m0:even x fp8_e4m3[1x128]:dynamic", "bytes"),
        (
            "NVFP4",
            "fp4_e2m1[1x16]:e4m3:second[*x*] x fp4_e2m1[1x16]:e4m3:dynamic:second[*x*]",
            "bytes",
        ),
        ("NVFP4A16", "fp4_e2m1[1x16]:e4m3:second[*x*]", "bytes"),
        ("UNQUANTIZED", "None", "plain"),
    ],
)
def test_presets(name: str, scheme: str, storage: str) -> None:
    group = read_group(name, ["Linear", "re:.*x"], None)
    assert (str(group.scheme), group.storage) == (scheme, storage)
    assert group.targets == ("Linear", "re:.*x")


def test_every_preset_is_that_of_the_library() -> None:
    library = pytest.importorskip("compressed_tensors.quantization.quant_scheme").PRESET_SCHEMES
    assert PRESETS.keys() == library.keys()
    words = ("type", "num_bits", "strategy", "symmetric", "group_size", "block_structure")
    for name, scheme in library.items():
        for role in ("weights", "input_activations"):
            theirs, ours = scheme.get(role), PRESETS[name].get(role)
            assert (theirs is None) == (ours is None), (name, role)
            if theirs is None or ours is None:
                continue
            assert theirs.dynamic == ours.get("dynamic", False)
            for word in words:
                value = getattr(theirs, word)
                assert getattr(value, "value", value) == ours.get(word), (name, role, word)


@pytest.mark.parametrize("form", ["marlin-24", "sparse-bitmask", "sparse-24-bitmask"])
def test_sparse_formats_are_named_with_a_remedy(form: str) -> None:
    with pytest.raises(MethodNotYetError, match=f"group_0 is stored as {form}") as caught:
        read(INT4, form=form)
    assert "quantization='fp8_per_channel'" in caught.value.todo


@pytest.mark.parametrize(
    ("weights", "inputs", "more", "what"),
    [
        (None, TOKEN, {}, "group_0 quantizes activations and no weights"),
        (FP8, None, {"output_activations": TOKEN}, "group_0 quantizes the outputs of layers"),
        (NV, STATIC, {}, "input_activations with static scales beside weights in nvfp4-pack"),
        (FP8, {**NV, "dynamic": "local"}, {}, "dynamic = 'local' beside weights in float-quan"),
    ],
)
def test_kinds_to_come_are_named(weights: Any, inputs: Any, more: Any, what: str) -> None:
    with pytest.raises(MethodNotYetError, match=what):
        read(weights, inputs, **more)


@pytest.mark.parametrize(
    ("weights", "inputs", "form", "text"),
    [
        (INT4, None, "mixed-precision", "format is None[\\s\\S]*format is 'mixed-precision'"),
        (INT4, None, "packed", "format is None[\\s\\S]*the block's format is 'packed'"),
        (INT8, None, "float-quantized", "its weights are int8"),
        (FP8, None, "int-quantized", "its weights are float8"),
        (FP8, None, "pack-quantized", "its weights are float8"),
        (NV, None, "float-quantized", "its weights are float4"),
        (MX, None, "mxfp4-pack-quantized", "its weights are float8"),
        (INT4, None, "nvfp4-pack-quantized", "its weights are int4"),
        (MX6, INT8, None, r"input_activations: type is 'int'"),
        ("fp8", None, None, "weights is 'fp8'"),
        (FP8, TOKEN, None, r"input_activations: type is 'int'[\s\S]*group_0.weights are floats"),
    ],
)
def test_impossible_values_are_named(weights: Any, inputs: Any, form: Any, text: str) -> None:
    with pytest.raises(ConfigError, match=rf"compressed-tensors: group_0[\s\S]*{text}"):
        read(weights, inputs, form)


def test_a_group_has_targets() -> None:
    with pytest.raises(ConfigError, match=r"compressed-tensors: group_0: targets is None"):
        read_group("group_0", {"weights": INT4}, None)


def test_a_list_stands_under_a_preset() -> None:
    with pytest.raises(ConfigError, match=r"config_groups.group_0 is \['Linear'\][\s\S]*W4A16"):
        read_group("group_0", ["Linear"], None)
