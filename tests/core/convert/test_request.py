"""What may be asked of a conversion, and how the rest is refused."""

from __future__ import annotations

import shlex

import pytest

from quantdock.convert.compressed import COMPRESSED
from quantdock.convert.goals import GOALS, Integers
from quantdock.convert.request import read_request
from quantdock.errors import ConfigError


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("FP8-per-tensor", "fp8_per_tensor"),
        ("ptpc_fp8", "fp8_per_channel"),
        ("unquant", "none"),
        ("W4A16", "w4a16"),
        ("auto_awq", "awq"),
        ("NVFP4", "nvfp4"),
        ("MXFP4A16", "mxfp4"),
        ("mxfp4_online", "mxfp4"),
        ("modelopt_fp4", "modelopt"),
        ("quark_mxfp4", "quark"),
    ],
)
def test_other_spellings_are_understood(written, meant):
    assert read_request(written).to == meant


@pytest.mark.parametrize(
    ("to", "text"),
    [
        ("fp8_per_tenser", "Did you mean fp8_per_tensor?"),
        ("bitsandbytes", f"known: {', '.join(GOALS)}, none"),
        ("bitsandbytes", "nf4, fp4 or int8 weights; it is not written"),
        ("int8_per_channel", "quantize while loading: -q int8_per_channel_weight_only."),
        ("nvfp5", "Did you mean nvfp4?"),
        ("mxint8", "MXINT8 has no file form"),
        ("mxfp6_e3m2", "mxfp6 stands for e2m3"),
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
    assert "--to mxfp8 --choose '*=fp8_per_block' --choose '*.k_proj=none'" in text
    assert read_request("mxfp8", choices={"*": "fp8_per_block", "*.o_proj": "mxfp8"})


@pytest.mark.parametrize(
    ("to", "integers", "choice", "told"),
    [
        (
            "awq",
            Integers(group_size=64),
            "gptq",
            "--to compressed-tensors --bits 4 --group-size 64 --asymmetric "
            "--choose '*.o_proj=gptq'",
        ),
        ("w8a8_int8", Integers(), "awq", "--to w8a8 --choose '*.o_proj=awq'"),
        ("gptq", Integers(), "w8a8", "--to compressed-tensors --choose '*.o_proj=w8a8'"),
        (
            "fp8_per_block",
            Integers(),
            "awq",
            "--to compressed-tensors --bits 4 --group-size 128 --asymmetric "
            "--choose '*=fp8_per_block' --choose '*.o_proj=awq'",
        ),
    ],
)
def test_the_command_for_a_mixture_writes_that_mixture(to, integers, choice, told):
    with pytest.raises(ConfigError) as caught:
        read_request(to, choices={"*.o_proj": choice}, integers=integers)
    assert caught.value.todo == f"compressed-tensors can mix them: {told}."
    options = shlex.split(told)
    pairs = [o.split("=") for o in options if "=" in o]
    bits = int(options[options.index("--bits") + 1]) if "--bits" in options else None
    size = int(options[options.index("--group-size") + 1]) if "--group-size" in options else None
    symmetric = False if "--asymmetric" in options else None
    asked = Integers(bits=bits, group_size=size, symmetric=symmetric)
    mixed = read_request(options[1], choices=dict(pairs), integers=asked)
    assert mixed.dialect is COMPRESSED
    usual = dict(pairs).get("*", mixed.to)
    assert mixed.scheme(usual) == GOALS[to].scheme(to, integers)
    assert mixed.scheme(choice) == GOALS[choice].scheme(choice)


def test_decoding_takes_no_patterns():
    for options in (
        {"ignore": ["a"]},
        {"choices": {"a": "none"}},
        {"integers": Integers(symmetric=False)},
    ):
        with pytest.raises(ConfigError, match="--to none decodes every layer"):
            read_request("none", **options)


def test_a_shard_needs_room_for_something():
    with pytest.raises(ConfigError, match="0 bytes at most"):
        read_request("mxfp8", max_shard_bytes=0)


def test_options_are_for_the_usual_layers_and_checked_at_once():
    request = read_request(
        "gptq", choices={"*.o_proj": "none"}, integers=Integers(bits=8, group_size=64)
    )
    assert str(request.scheme("gptq")) == "int8[1x64]"
    with pytest.raises(ConfigError, match="gptq cannot be written with --bits 7"):
        read_request("gptq", integers=Integers(bits=7))
    with pytest.raises(ConfigError, match="fp8_per_block cannot be written with --group-size 64"):
        read_request("fp8_per_block", integers=Integers(group_size=64))


def test_every_option_counts_for_a_later_run():
    known = read_request("gptq").to_json()
    for integers in (Integers(bits=3), Integers(group_size=32), Integers(symmetric=False)):
        other = read_request("gptq", integers=integers).to_json()
        assert other.keys() == known.keys() and other != known


def test_dialects_with_one_setting_take_no_other_beside_it():
    with pytest.raises(ConfigError, match="awq is written as awq, which cannot hold w8a16"):
        read_request("awq", choices={"*.o_proj": "w8a16"})
    assert read_request("gptq", choices={"*.o_proj": "w8a16"}).choices
