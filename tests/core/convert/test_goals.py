"""What each word stands for, and which options it takes."""

from __future__ import annotations

import re

import pytest

from quantdock.convert.goals import GOALS, WHOLE_ROW, Integers
from quantdock.errors import ConfigError

TOKEN = "int8[1x*]:dynamic"
USUAL = {
    "fp8_per_tensor": "fp8_e4m3[*x*] x fp8_e4m3[1x*]:dynamic",
    "fp8_per_channel": "fp8_e4m3[1x*] x fp8_e4m3[1x*]:dynamic",
    "fp8_per_block": "fp8_e4m3[128x128] x fp8_e4m3[1x128]:dynamic",
    "mxfp8": "fp8_e4m3[1x32]:e8m0:ceil x fp8_e4m3[1x32]:e8m0:ceil:dynamic",
    "mxfp6": "fp6_e2m3[1x32]:e8m0:even",
    "mxfp6a8": "fp6_e2m3[1x32]:e8m0:even x fp8_e4m3[1x32]:e8m0:ceil:dynamic",
    "mxfp4": "fp4_e2m1[1x32]:e8m0:even",
    "mxfp4a4": "fp4_e2m1[1x32]:e8m0:even x fp4_e2m1[1x32]:e8m0:even:dynamic",
    "nvfp4": "fp4_e2m1[1x16]:e4m3:second[*x*]",
    "modelopt": "fp4_e2m1[1x16]:e4m3:second[*x*]",
    "quark": "fp4_e2m1[1x32]:e8m0:even x fp4_e2m1[1x32]:e8m0:even:dynamic",
    "gptq": "int4[1x128]",
    "awq": "uint4[1x128]:zero",
    "compressed-tensors": "int4[1x128]",
    "w4a16": "int4[1x128]",
    "w8a16": "int8[1x*]",
    "w8a8": f"int8[1x*] x {TOKEN}",
    "w8a8_int8": f"int8[1x*] x {TOKEN}",
}


def test_every_word_has_a_usual_scheme_that_its_dialect_can_say():
    assert {word: str(goal.scheme(word)) for word, goal in GOALS.items()} == USUAL
    for word, goal in GOALS.items():
        layers = {"a.b": goal.scheme(word)}
        assert goal.dialect.for_layers(layers).why_not(layers) == (), word


@pytest.mark.parametrize(
    ("word", "asked", "scheme"),
    [
        ("gptq", Integers(bits=3, group_size=32), "int3[1x32]"),
        ("gptq", Integers(bits=8, group_size=WHOLE_ROW, symmetric=False), "uint8[1x*]:zero"),
        ("awq", Integers(symmetric=True, group_size=64), "int4[1x64]"),
        ("compressed-tensors", Integers(bits=8), "int8[1x128]"),
        ("w4a16", Integers(symmetric=False), "uint4[1x128]:zero"),
        ("w8a16", Integers(group_size=64), "int8[1x64]"),
        ("w8a8", Integers(symmetric=False), "int8[1x*] x int8[1x*]:zero:dynamic"),
        ("w8a8", Integers(bits=8, group_size=-1), f"int8[1x*] x {TOKEN}"),
    ],
)
def test_options_make_another_scheme_that_the_dialect_can_say(word, asked, scheme):
    made = GOALS[word].scheme(word, asked)
    assert str(made) == scheme
    assert GOALS[word].dialect.for_layers({"a.b": made}).why_not({"a.b": made}) == ()


@pytest.mark.parametrize(
    ("word", "asked", "text"),
    [
        (
            "gptq",
            Integers(bits=5),
            "gptq cannot be written with --bits 5.*known: 2, 3, 4, 8; 4 where",
        ),
        ("awq", Integers(bits=8), "--bits 8.*known: 4"),
        ("w8a8", Integers(group_size=128), "--group-size 128.*a scale serves a whole row"),
        (
            "w8a8_int8",
            Integers(symmetric=False),
            "with --asymmetric.*always symmetric.*Leave --asymmetric",
        ),
        ("gptq", Integers(group_size=0), "--group-size 0.*positive, or -1"),
        ("mxfp8", Integers(bits=8), "mxfp8 cannot be written with --bits 8.*it is always fp8_e4m3"),
    ],
)
def test_options_that_a_word_does_not_have_are_refused(word, asked, text):
    with pytest.raises(ConfigError) as caught:
        GOALS[word].scheme(word, asked)
    assert re.search(text, str(caught.value).replace("\n", " "))
