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


MXFP4, E3M2 = "fp4_e2m1[1x32]:e8m0:even", "fp6_e3m2[1x32]:e8m0:even"
NVFP4 = "fp4_e2m1[1x16]:e4m3:second[*x*]"


@pytest.mark.parametrize(
    ("schemes", "method", "name"),
    [
        ([MXFP4], "mxfp4_online", "compressed-tensors"),
        ([MXFP4], "quark_mxfp4", "quark"),
        ([E3M2], "mxfp4_online", "quark"),
        ([NVFP4], "nvfp4_online", "modelopt"),
        ([NVFP4], "compressed-tensors", "compressed-tensors"),
        ([NVFP4, MXFP4], "nvfp4_online", "compressed-tensors"),
        (["fp8_e4m3[*x*] x fp8_e4m3[*x*]"], "modelopt_fp8", "modelopt"),
    ],
)
def test_small_floats_go_by_the_dialect_that_has_words_for_them(schemes, method, name):
    layers = {f"layers.{index}": parse_scheme(text) for index, text in enumerate(schemes)}
    assert choose_dialect(layers, method).name == name


def test_what_no_file_stores_is_named_with_the_way_to_write_the_weights():
    scheme = f"{NVFP4} x fp4_e2m1[1x16]:e4m3:dynamic:second[*x*]-dynamic"
    with pytest.raises(SaveError) as caught:
        choose_dialect({"a": parse_scheme(scheme)}, "nvfp4_online")
    assert caught.value.why == (
        "a: the second scale of its inputs is computed at run time, and files store one",
    )
    assert caught.value.todo.startswith(
        "Write such weights alone: quantdock convert IN OUT --to nvfp4. Or: Copy the checkpoint"
    )


def test_no_dialect_is_an_error_with_every_reason():
    layers = {"a": parse_scheme("fp8_e4m3fnuz[1x*]"), "b": parse_scheme(CHANNEL)}
    with pytest.raises(SaveError) as caught:
        choose_dialect(layers)
    assert "compressed-tensors cannot say that a is fp8_e4m3fnuz[1x*]" in str(caught.value)
    assert "transformers' fine-grained fp8" in str(caught.value)
    assert "quantization='none'" in caught.value.todo
