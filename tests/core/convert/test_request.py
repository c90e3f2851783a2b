"""What may be asked of a conversion, and how the rest is refused."""

from __future__ import annotations

import pytest

from quantdock.convert.request import GOALS, fixed_scheme, read_request
from quantdock.errors import ConfigError


@pytest.mark.parametrize(
    ("to", "scheme", "dialect"),
    [
        (
            "fp8_per_tensor",
            "fp8_e4m3[*x*] x fp8_e4m3[1x*]:dynamic",
            "compressed-tensors",
        ),
        ("fp8_per_channel", "fp8_e4m3[1x*] x fp8_e4m3[1x*]:dynamic", "compressed-tensors"),
        (
            "fp8_per_block",
            "fp8_e4m3[128x128] x fp8_e4m3[1x128]:dynamic",
            "transformers' fine-grained fp8",
        ),
        (
            "mxfp8",
            "fp8_e4m3[1x32]:e8m0:ceil x fp8_e4m3[1x32]:e8m0:ceil:dynamic",
            "compressed-tensors",
        ),
    ],
)
def test_each_word_is_one_scheme_and_one_dialect(to, scheme, dialect):
    assert (str(fixed_scheme(to)), GOALS[to].dialect.name) == (scheme, dialect)
    assert GOALS[to].dialect.why_not({"a.b": fixed_scheme(to)}) == ()


@pytest.mark.parametrize(
    ("written", "meant"),
    [("FP8-per-tensor", "fp8_per_tensor"), ("ptpc_fp8", "fp8_per_channel"), ("unquant", "none")],
)
def test_other_spellings_are_understood(written, meant):
    assert read_request(written).to == meant


@pytest.mark.parametrize(
    ("to", "text"),
    [
        ("fp8_per_tenser", "Did you mean fp8_per_tensor?"),
        ("gptq", "known: fp8_per_tensor, fp8_per_channel, fp8_per_block, mxfp8, none"),
        ("fp8", "fp8 is whichever of these a device runs best"),
    ],
)
def test_words_that_are_no_file_format_are_refused(to, text):
    with pytest.raises(ConfigError, match=f"--to is '{to}', which is nothing") as caught:
        read_request(to)
    assert text in str(caught.value)
    with pytest.raises(ConfigError, match=rf"--choose a\.b is '{to}'"):
        read_request("mxfp8", choices={"a.b": to})


def test_compressed_tensors_mixes_schemes():
    choices = {"*.o_proj": "fp8_per_block", "*.q_proj": "mxfp8", "*.k_proj": "none"}
    assert read_request("fp8_per_tensor", choices=choices).choices == choices


def test_one_block_size_for_all_is_said_with_the_way_out():
    with pytest.raises(ConfigError) as caught:
        read_request("fp8_per_block", choices={"*.k_proj": "none", "*.o_proj": "mxfp8"})
    text = str(caught.value)
    assert text.startswith(
        "fp8_per_block is written as transformers' fine-grained fp8, which cannot hold mxfp8"
    )
    assert "cannot say that mxfp8 is fp8_e4m3[1x32]:e8m0:ceil" in text
    assert "--to mxfp8 --choose '*=fp8_per_block' --choose '*.o_proj=mxfp8'" in text
    assert read_request("mxfp8", choices={"*": "fp8_per_block", "*.o_proj": "mxfp8"})


def test_decoding_takes_no_patterns():
    for options in ({"ignore": ["a"]}, {"choices": {"a": "none"}}):
        with pytest.raises(ConfigError, match="--to none decodes every layer"):
            read_request("none", **options)


def test_a_shard_needs_room_for_something():
    with pytest.raises(ConfigError, match="0 bytes at most"):
        read_request("mxfp8", max_shard_bytes=0)
