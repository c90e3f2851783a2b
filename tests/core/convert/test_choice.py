"""Which dialect a saved model is written in."""

from __future__ import annotations

import pytest

from quantdock.convert.choice import choose_dialect
from quantdock.errors import SaveError
from quantdock.schemes import parse_scheme

BLOCK = "fp8_e4m3[128x128] x fp8_e4m3[1x128]:dynamic"
CHANNEL = "fp8_e4m3[1x*] x fp8_e4m3[1x*]:dynamic"


@pytest.mark.parametrize(
    ("schemes", "name"),
    [
        ([BLOCK], "transformers' fine-grained fp8"),
        ([CHANNEL], "compressed-tensors"),
        ([BLOCK, CHANNEL], "compressed-tensors"),
        ([BLOCK, "fp8_e4m3[64x64] x fp8_e4m3[1x64]:dynamic"], "compressed-tensors"),
        (["fp8_e5m2[*x*] x fp8_e5m2[1x*]:dynamic"], "transformers' fine-grained fp8"),
    ],
)
def test_blocks_of_one_size_are_transformers_own(schemes, name):
    layers = {f"layers.{index}": parse_scheme(text) for index, text in enumerate(schemes)}
    assert choose_dialect(layers).name == name


@pytest.mark.parametrize("text", ["fp4_e2m1[1x32]:e8m0:even", "fp6_e3m2[1x32]:e8m0:even"])
def test_small_floats_are_said_not_to_be_written_once(text):
    with pytest.raises(SaveError) as caught:
        choose_dialect({"a": parse_scheme(text)})
    kind = text[:3]
    assert caught.value.why == (
        f"a is {text}; {kind} is read and run, and no dialect of it is written yet",
    )
    assert caught.value.todo.startswith("Copy the checkpoint")


def test_no_dialect_is_an_error_with_every_reason():
    layers = {"a": parse_scheme("fp8_e4m3fnuz[1x*]"), "b": parse_scheme(CHANNEL)}
    with pytest.raises(SaveError) as caught:
        choose_dialect(layers)
    assert "compressed-tensors cannot say that a is fp8_e4m3fnuz[1x*]" in str(caught.value)
    assert "transformers' fine-grained fp8" in str(caught.value)
    assert "quantization='none'" in caught.value.todo
