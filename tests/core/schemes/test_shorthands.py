"""The table of online shorthands."""

from __future__ import annotations

from quantdock.schemes.shorthands import SHORTHANDS


def test_every_word_and_its_schemes_in_order() -> None:
    channel = "fp8_e4m3[1x*] x fp8_e4m3[1x*]:dynamic"
    block = "fp8_e4m3[128x128] x fp8_e4m3[1x128]:dynamic"
    tensor = "fp8_e4m3[*x*] x fp8_e4m3[1x*]:dynamic"
    tensors = "fp8_e4m3[*x*] x fp8_e4m3[*x*]:dynamic"
    assert {word: [str(s) for s in schemes] for word, schemes in SHORTHANDS.items()} == {
        "fp8": [channel, block, tensor, tensors],
        "fp8_per_tensor": [tensor, tensors],
        "fp8_per_channel": [channel],
        "fp8_per_block": [block],
        "mxfp8": ["fp8_e4m3[1x32]:e8m0:ceil x fp8_e4m3[1x32]:e8m0:ceil:dynamic"],
        "mxfp4": ["fp4_e2m1[1x32]:e8m0:even"],
        "nvfp4": [
            "fp4_e2m1[1x16]:e4m3:second[*x*] x fp4_e2m1[1x16]:e4m3:dynamic:second[*x*]-dynamic",
            "fp4_e2m1[1x16]:e4m3:second[*x*]",
        ],
        "w8a8_int8": ["int8[1x*] x int8[1x*]:dynamic"],
        "int8_per_channel_weight_only": ["int8[1x*]"],
    }


def test_weights_are_static_and_activations_dynamic() -> None:
    for schemes in SHORTHANDS.values():
        for scheme in schemes:
            assert not scheme.weight.dynamic
            assert scheme.activation is None or scheme.activation.dynamic
