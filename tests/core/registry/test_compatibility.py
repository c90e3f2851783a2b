"""The table user x file: every row leads to a config that reads the file, or to a remedy."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from quantdock import explain
from quantdock.errors import (
    MethodLookupError,
    MethodNotYetError,
    MismatchError,
    NoKernelError,
)
from quantdock.registry import choose_method
from quantdock.registry.compatibility import PAIRS, find_pair, readers_of
from quantdock.registry.names import NAMES
from quantdock.schemes import LayerFacts
from quantdock.testing import use_plugins

TO_COME = {row.name for row in NAMES if row.target is None and not row.alias_of}
_GPTQ = {"bits": 4, "group_size": 32, "sym": True, "desc_act": False}
_AWQ = {"bits": 4, "group_size": 32, "zero_point": True, "version": "gemm"}
_MX = {"dtype": "fp4", "qscheme": "per_group", "group_size": 32, "scale_format": "e8m0"}
_INT8 = {"num_bits": 8, "type": "int", "strategy": "channel", "symmetric": True}
_FP8 = {**_INT8, "type": "float"}
_TOKEN = {"strategy": "token", "dynamic": True}


def compressed(args):
    group = {"targets": ["Linear"], "weights": args, "input_activations": {**args, **_TOKEN}}
    return {"format": f"{args['type']}-quantized", "config_groups": {"group_0": group}}


# What a file of a method says of itself; where it depends on the user, so that both agree.
BLOCKS = {
    "gptq": _GPTQ,
    "awq": _AWQ,
    "auto-round": {**_GPTQ, "packing_format": "auto_round:auto_gptq"},
    "quark": {"global_quant_config": {"weight": _MX}},
    "modelopt_fp8": {"quant_algo": "FP8"},
    "modelopt_fp4": {"quant_algo": "NVFP4"},
    "modelopt_mxfp8": {"quant_algo": "MXFP8"},
    "modelopt_mixed": {
        "quant_algo": "MIXED_PRECISION",
        "quantized_layers": {"model.layers.0.mlp.up_proj": {"quant_algo": "NVFP4"}},
    },
    "w4afp8": {"quant_algo": "MIXED_PRECISION"},
    "w8a8_fp8": compressed(_FP8),
    "w8a8_int8": compressed(_INT8),
}
OF_USERS = {
    "modelopt": "modelopt_fp8",
    "petit_nvfp4": "modelopt_fp4",
    "minimax_m3_nvfp4": "modelopt_mixed",
    "nvfp4_online": "modelopt_fp8",
}


def block_of(pair):
    if pair.file in ("modelopt", "compressed-tensors"):
        return BLOCKS.get(OF_USERS.get(pair.user, pair.user), {})
    return BLOCKS.get(pair.file, {})


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: f"{pair.user}-{pair.file}")
def test_a_row_reads_its_file_or_says_what_to_do(pair):
    block = {"quant_method": pair.file, **block_of(pair)}
    said = SimpleNamespace(method=pair.file, block=block, source="config.json")
    taken = pair.user if pair.takes == "user" else pair.file
    with use_plugins():
        if taken in TO_COME:
            with pytest.raises(MethodNotYetError):
                choose_method(pair.user, said, "cpu:generic")
            return
        if pair.user in ("gptq_marlin", "awq_marlin"):  # no kernel of a plain CPU repacks
            return
        if pair.user == "auto-round" and pair.file == "compressed-tensors":
            block |= compressed(_INT8)
        choice = choose_method(pair.user, said, "cpu:generic")
        assert choice.name == taken
        config = choice.config_class.from_config(choice.block)
        facts = LayerFacts(prefix="model.layers.0.mlp.up_proj")
        decision = config.scheme_for(facts)
    assert decision.kind == "quantized", decision.because


def test_spelling_makes_no_difference_and_order_does():
    assert find_pair("Quark-MXFP4", "quark") is find_pair("quark_mxfp4", "QUARK")
    assert find_pair("quark", "quark_mxfp4") is None
    assert "petit_nvfp4" in readers_of("modelopt_fp4") and "petit_nvfp4" not in readers_of("fp8")


def test_what_is_no_row_is_refused():
    said = SimpleNamespace(method="fp8", block={"quant_method": "fp8"}, source="config.json")
    with use_plugins(), pytest.raises(MismatchError) as caught:
        choose_method("modelopt_fp4", said, "cpu:generic")
    assert "deepseek_v4_fp8" in str(caught.value)


_CT = {"num_bits": 4, "type": "float", "strategy": "group", "group_size": 32}
_NAMED = {"model.layers.0.mlp.up_proj": {"quant_algo": "NVFP4"}}


def words(form, **args):
    group = {"targets": ["Linear"], "weights": args, "format": form}
    return {"quant_method": "compressed-tensors", "config_groups": {"all": group}}


def modelopt(algorithm, **more):
    return {"quant_method": "modelopt", "quant_algo": algorithm, **more}


# A file of each kind -> the methods that read it where a user asks, besides those of every file.
KINDS = {
    "fp8": ({"quant_method": "fp8"}, "deepseek_v4_fp8 w4afp8 nvfp4_online"),
    "static fp8": (
        {"quant_method": "fp8", "activation_scheme": "static"},
        "deepseek_v4_fp8 nvfp4_online",
    ),
    "mxfp8": ({"quant_method": "mxfp8"}, "minimax_m3_nvfp4 modelopt_mxfp8"),
    "gptq": ({"quant_method": "gptq", **_GPTQ}, "auto-round moe_wna16"),
    "awq": ({"quant_method": "awq", **_AWQ}, "auto-round moe_wna16"),
    "ct fp8": (words("float-quantized", **_FP8), "auto-round w8a8_fp8"),
    "ct int8": (words("int-quantized", **_INT8), "auto-round w8a8_int8"),
    "ct words of 8 bits": (words("pack-quantized", **_INT8), "auto-round"),
    "ct words of 4 bits": (words("pack-quantized", **{**_INT8, "num_bits": 4}), "auto-round"),
    "ct mxfp4": (words("mxfp4-pack-quantized", **_CT), "auto-round"),
    "ct nvfp4": (
        words("nvfp4-pack-quantized", **{**_CT, "strategy": "tensor_group", "group_size": 16}),
        "auto-round",
    ),
    "ct mxfp8": (words("mxfp8-quantized", **{**_CT, "num_bits": 8}), "auto-round"),
    "modelopt fp8": (modelopt("FP8"), "modelopt_fp8 nvfp4_online minimax_m3_nvfp4"),
    "modelopt nvfp4": (modelopt("NVFP4"), "modelopt_fp4 petit_nvfp4 minimax_m3_nvfp4"),
    "modelopt mxfp8": (modelopt("MXFP8"), "modelopt_mxfp8 minimax_m3_nvfp4"),
    "modelopt awq": (modelopt("W4A16_AWQ"), "minimax_m3_nvfp4"),
    "modelopt mixed": (
        modelopt("MIXED_PRECISION", quantized_layers=_NAMED),
        "modelopt_mixed minimax_m3_nvfp4",
    ),
    "quark mxfp4": (
        {"quant_method": "quark", "global_quant_config": {"weight": _MX}},
        "quark_mxfp4 quark_int4fp8_moe",
    ),
    "quark int8": (
        {
            "quant_method": "quark",
            "global_quant_config": {"weight": {"dtype": "int8", "qscheme": "per_channel"}},
        },
        "quark_int4fp8_moe",
    ),
}


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_offered_for_a_file_is_what_reads_it_and_no_more(kind):
    """Every name on every kind of file: it plans, or the error says why and what would."""
    block, expected = KINDS[kind]
    wanted = {block["quant_method"], "none", *expected.split()}
    reads, offers = set(), set()
    with use_plugins():
        for name in [row.name for row in NAMES if row.target]:
            try:
                plan = explain({"quantization_config": block}, "cpu:generic", quantization=name)
            except MismatchError as error:
                (offer,) = [why for why in error.why if why.startswith("what may be asked for")]
                offers.add(offer.partition(": ")[2])
                assert "Leave the option out" in error.todo
            except (MethodLookupError, NoKernelError) as error:  # no kernel of a plain CPU repacks
                assert name.endswith("_marlin") and error.todo
            else:
                assert any(rule.decision == "quantized" for rule in plan.rules) or name == "none"
                reads.add(name)
    assert reads == wanted
    (offer,) = offers
    method = block["quant_method"]
    taken = {pair.user for pair in PAIRS if (pair.file, pair.takes) == (method, "file")}
    assert set(offer.split(", ")) == {name for name in reads if name not in taken} | {"none"}
