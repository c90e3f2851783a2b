"""The user's word against the file's: the table, claims, none, at-load quantization."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from quantdock import MethodName, Platform, get_platform
from quantdock.configs.fp8 import Fp8Config
from quantdock.errors import (
    ConfigError,
    MethodLookupError,
    MethodNotYetError,
    MismatchError,
    QuantDockError,
)
from quantdock.registry import choose_method, settle_choices
from quantdock.registry.compatibility import PAIRS
from quantdock.registry.names import NAMES
from quantdock.testing import make_plugin, use_plugins

SOURCE = "config.json: quantization_config"


def file(method, **fields):
    block = {"quant_method": method, **fields}
    return SimpleNamespace(method=method, block=block, source=SOURCE)


def closed(*methods, automatic=True, name="cpu", arch="generic"):
    """Return a CPU whose set of names is closed to all but ``methods``."""
    return Platform(
        name=name,
        arch=arch,
        device="cpu",
        builtin_methods=frozenset(methods),
        automatic=automatic,
    )


def choose(user, block=None):
    return choose_method(user, block, "cpu:generic")


class Claims(Fp8Config):
    """Takes over files that say special."""

    name = "acme_a"

    @classmethod
    def claim(cls, config, user, platform, kernels=()):
        return "it says special" if config.get("special") else None


class ClaimsToo(Claims):
    """Takes the same files."""

    name = "acme_b"


class ClaimsOnCpus(Claims):
    """Takes them only where the plain CPU runs."""

    name = "acme_c"

    @classmethod
    def claim(cls, config, user, platform, kernels=()):
        return super().claim(config, user, platform) if platform.arch == "generic" else None


class Raises(Fp8Config):
    """Cannot even look."""

    @classmethod
    def claim(cls, config, user, platform, kernels=()):
        raise KeyError("bits")


def claimer(name, config, platforms=None):
    target = f"{__name__}:{config.__name__}"
    row = MethodName(name=name, summary="claims", target=target, platforms=platforms)
    return make_plugin(f"acme_of_{name}", get_quantization_methods=lambda: (row,))


def test_nobody_asks_for_quantization():
    with use_plugins():
        choice = choose(None)
    assert (choice.name, choice.block, choice.is_online) == ("none", None, False)
    assert choice.because == "neither the user nor the checkpoint asks for quantization"


def test_the_file_decides_alone():
    with use_plugins():
        choice = choose(None, file("fp8"))
    assert (choice.name, choice.config_class) == ("fp8", Fp8Config)
    assert (choice.is_online, choice.dequantize) == (False, False)
    assert choice.block == {"quant_method": "fp8"}
    assert choice.because == "config.json: quantization_config says fp8"


def test_the_user_quantizes_a_plain_file():
    with use_plugins():
        choice = choose("FP8_per_block")
    assert (choice.name, choice.is_online, choice.block) == ("fp8_per_block", True, None)
    assert choice.because == "the user asks for fp8_per_block; the checkpoint is not quantized"


def test_a_method_that_needs_a_quantized_file_lists_those_that_do_not():
    with use_plugins(), pytest.raises(ConfigError) as caught:
        choose("fbgemm_fp8")
    able = sorted(row.name for row in NAMES if row.target and row.online)
    assert str(caught.value).splitlines()[:2] == [
        "fbgemm_fp8 cannot quantize a 16-bit checkpoint at load.",
        f"  those that can on cpu:generic: {', '.join(able)}",
    ]


@pytest.mark.parametrize(
    ("name", "what", "todo"),
    [
        (
            "nvfp4",
            "nvfp4, another name of modelopt_fp4, cannot",
            "Choose nvfp4_online, which makes",
        ),
        ("petit_nvfp4", "petit_nvfp4 cannot", "Choose nvfp4_online, which makes"),
        ("gptq", "gptq cannot", "gptq ('quantdock convert CHECKPOINT OUT --to gptq' writes one)."),
        ("moe_wna16", "moe_wna16 cannot", "Choose one of them, or load a checkpoint that is"),
    ],
)
def test_a_method_for_files_names_what_is_for_16_bit_weights(name, what, todo):
    with use_plugins(), pytest.raises(ConfigError) as caught:
        choose(name)
    assert caught.value.what.startswith(what) and todo in caught.value.todo


def test_a_choice_for_some_layers_must_be_of_the_platform_s_names():
    here = closed("fp8", "mxfp4", name="cpu_amx", arch="amx")
    with use_plugins("quantdock_cpu_amx.plugin"):
        allowed = {"*.o_proj": "fp8", "*.q_proj": "none", "*.k_proj": "mxfp4"}
        assert settle_choices(allowed, here) == allowed
        for word in ("mxfp8", "nvfp4"):
            with pytest.raises(MethodLookupError) as caught:
                settle_choices({"*.o_proj": word}, here)
            assert caught.value.what.startswith(f"cpu_amx:amx does not run {word}")
            assert f"asked for by choices['*.o_proj'] = '{word}'" in caught.value.why
            assert "--platform cpu" in caught.value.todo
        # One that no platform runs yet is no word of the layer's, and no kind of the checkpoint.
        assert settle_choices({"*.o_proj": "tpu_int8"}, here) == {"*.o_proj": "tpu_int8"}


def test_user_and_file_agree_in_any_spelling():
    with use_plugins():
        choice = choose("W8A8-FP8", file("w8a8_fp8"))
    assert (choice.name, choice.is_online) == ("w8a8_fp8", False)
    assert choice.because == f"the user asks for w8a8_fp8, and {SOURCE} says the same"


def test_none_decodes_a_quantized_file():
    with use_plugins():
        choice = choose("unquant", file("fp8"))
    assert (choice.name, choice.dequantize, choice.is_online) == ("fp8", True, False)
    asked = "the user asks for unquant, another name of none"
    assert choice.because == f"{asked}; decoded from fp8 ({SOURCE}) at load"


def test_none_decodes_a_file_as_who_takes_it_over_reads_it():
    block = {"quant_method": "fp8", "weight_block_size": [128, 128], "expert_dtype": "fp4"}
    with use_plugins():
        choice = choose("none", SimpleNamespace(method="fp8", block=block, source=SOURCE))
    assert (choice.name, choice.dequantize) == ("deepseek_v4_fp8", True)
    assert "decoded from deepseek_v4_fp8" in choice.because


def test_at_load_methods_do_not_combine_with_quantized_files():
    with use_plugins(), pytest.raises(MismatchError) as caught:
        choose("fp8_per_channel", file("w8a8_fp8"))
    assert str(caught.value) == (
        "quantization='fp8_per_channel' cannot be combined with a checkpoint of w8a8_fp8.\n"
        "  config.json: quantization_config says w8a8_fp8\n"
        "  fp8_per_channel quantizes 16-bit checkpoints at load; this one is quantized\n"
        "  what may be asked for on this file here: w8a8_fp8, none\n"
        "Leave the option out to run the file as it is, or ask for 'none' to decode it to "
        "the model's dtype at load."
    )
    assert (caught.value.user, caught.value.file) == ("fp8_per_channel", "w8a8_fp8")


def test_another_name_is_told_as_it_was_typed():
    with use_plugins():
        choice = choose("auto_gptq", file("gptq", bits=4, group_size=32))
        with pytest.raises(MismatchError) as caught:
            choose("auto_awq", file("gptq", bits=4, group_size=32))
    asked = "the user asks for auto_gptq, another name of gptq"
    assert choice.because == f"{asked}, and {SOURCE} says the same"
    assert str(caught.value).splitlines()[:2] == [
        "quantization='auto_awq' cannot be combined with a checkpoint of gptq.",
        "  auto_awq is another name of awq",
    ]


@pytest.mark.parametrize("method", ["gptq", "awq", "fp8", "modelopt"])
def test_an_unknown_name_on_a_quantized_file_has_the_closest_one(method):
    with use_plugins(), pytest.raises(MethodLookupError) as caught:
        choose("gptqq", file(method))
    assert str(caught.value).startswith("There is no quantization method 'gptqq' on cpu:generic.")
    assert caught.value.todo.startswith("Did you mean gptq?")


@pytest.mark.parametrize(
    ("algorithm", "able"),
    [
        ("W4A16_AWQ", "modelopt"),
        ("FP8", "modelopt, modelopt_fp8, nvfp4_online"),
        ("NVFP4", "modelopt, modelopt_fp4, petit_nvfp4"),
    ],
)
def test_a_mismatch_offers_only_names_that_read_this_file(algorithm, able):
    with use_plugins(), pytest.raises(MismatchError) as caught:
        choose("gptq", file("modelopt", quant_algo=algorithm))
    assert f"  what may be asked for on this file here: {able}, none\n" in str(caught.value)


def test_a_mismatch_with_a_file_that_nothing_reads_has_its_remedy():
    with use_plugins(), pytest.raises(MismatchError) as caught:
        choose("fp8", file("aqlm"))
    assert "aqlm files are not supported yet" in str(caught.value)
    assert caught.value.todo.startswith("Load the 16-bit original of this model")


LATER = {row.name: row.remedy for row in NAMES if row.remedy}


@pytest.mark.parametrize("pair", [pair for pair in PAIRS if pair.user in LATER], ids=str)
def test_a_pair_whose_user_wins_and_comes_later_has_its_remedy(pair):
    assert pair.takes == "user"
    with use_plugins(), pytest.raises(MethodNotYetError) as caught:
        choose(pair.user, file(pair.file))
    assert (caught.value.asked, caught.value.todo) == (pair.user, LATER[pair.user])


def test_a_pair_that_the_file_wins():
    with use_plugins():
        choice = choose("modelopt", file("modelopt_fp8"))
    assert (choice.name, choice.asked) == ("modelopt_fp8", False)


def test_a_pair_that_the_user_wins():
    with use_plugins():
        choice = choose("moe_wna16", file("gptq", bits=4, group_size=32, sym=True))
    assert (choice.name, choice.is_online) == ("moe_wna16", False)
    assert choice.because == (
        f"the user asks for moe_wna16, {SOURCE} says gptq: the same files by another name"
    )


def test_a_pair_whose_file_is_of_another_kind_is_refused_with_what_reads_it():
    args = {"num_bits": 8, "type": "int", "strategy": "channel"}
    group = {"targets": ["Linear"], "weights": args, "format": "int-quantized"}
    said = file("compressed-tensors", config_groups={"all": group})
    with use_plugins(), pytest.raises(MismatchError) as caught:
        choose("w8a8_fp8", said)
    assert str(caught.value).splitlines() == [
        "quantization='w8a8_fp8' cannot be combined with this checkpoint of compressed-tensors.",
        f"  {SOURCE} says compressed-tensors",
        "  w8a8_fp8 was asked for, and config_groups.all is int8[1x*]",
        "  w8a8_fp8 stands for fp8_e4m3[1x*] and fp8_e4m3[*x*], one code a byte",
        "  what may be asked for on this file here: compressed-tensors, w8a8_int8, none",
        "Leave the option out to run the file as it is, or ask for 'none' to decode it to the "
        "model's dtype at load.",
    ]


def test_a_claim_takes_a_file_over_and_is_explained():
    with use_plugins(claimer("acme_a", Claims)):
        choice = choose(None, file("no_such_method", special=True))
        assert choice.name == "acme_a"
        assert choice.because == (
            f"{SOURCE} says no_such_method; acme_a takes it over: it says special"
        )
        assert choose(None, file("fp8")).name == "fp8"


def test_two_claims_are_an_error_that_the_user_settles():
    plugins = (claimer("acme_a", Claims), claimer("acme_b", ClaimsToo))
    with use_plugins(*plugins):
        with pytest.raises(MismatchError) as caught:
            choose(None, file("fp8", special=True))
        assert str(caught.value) == (
            "acme_a and acme_b both claim this checkpoint.\n"
            "  acme_a (acme-of-acme-a): it says special\n"
            "  acme_b (acme-of-acme-b): it says special\n"
            "Choose one: quantization='acme_a' or 'acme_b'."
        )
        assert choose("acme_b", file("fp8", special=True)).name == "acme_b"


def test_a_user_may_settle_two_claims_by_another_name_of_one():
    row = MethodName(name="acme_short", alias_of="acme_b", summary="short for acme_b")
    alias = make_plugin("acme_names", get_quantization_methods=lambda: (row,))
    with use_plugins(claimer("acme_a", Claims), claimer("acme_b", ClaimsToo), alias):
        assert choose("acme_short", file("fp8", special=True)).name == "acme_b"


def test_a_claim_never_beats_the_user():
    with use_plugins(claimer("acme_a", Claims)):
        choice = choose("fp8", file("fp8", special=True))
    assert choice.name == "fp8"
    assert choice.notes == (
        "acme_a would take this file over (it says special); the user's choice stands. "
        "Asking for acme_a, or for nothing, takes it",
    )
    assert choice.asked


def test_a_claim_that_raises_is_recorded_and_nothing_else():
    with use_plugins(claimer("acme_c", Raises)) as registry:
        assert choose(None, file("fp8")).name == "fp8"
        assert [f.reason for f in registry.failures] == [
            "the claim of acme_c raised KeyError: 'bits'"
        ]


@pytest.mark.parametrize("method", ["", "  ", None])
def test_a_file_that_names_no_method_is_one_clear_error(method):
    with use_plugins(), pytest.raises(ConfigError) as caught:
        choose(None, file(method, bits=4))
    assert str(caught.value) == (
        f"The checkpoint's quantization settings name no method: {method!r}.\n"
        f"  found in {SOURCE}\n"
        'Write quant_method into it, such as "quant_method": "fp8".'
    )


def test_an_unknown_method_of_a_file_says_where_it_was_found():
    with use_plugins(), pytest.raises(MethodLookupError) as caught:
        choose(None, file("fp9"))
    assert f"asked for by {SOURCE}" in str(caught.value)
    assert "Did you mean fp8?" in str(caught.value)


def test_near_spellings_of_a_file_reach_their_row():
    with use_plugins():
        assert choose(None, file("compressed_tensors")).name == "compressed-tensors"
        assert choose(None, file("auto_round")).name == "auto-round"


def test_an_automatic_platform_that_is_closed_to_the_file_steps_down(monkeypatch):
    with use_plugins():
        choice = choose_method(None, file("mxfp8"), closed("awq"))
    assert choice.platform.builtin_methods is None
    assert choice.notes[0].startswith("cpu:generic does not run mxfp8; stepped down to cpu:")


def test_a_claim_of_a_name_that_an_automatic_platform_excludes_steps_down_too():
    says = file("fp8", expert_dtype="fp4")
    with use_plugins():
        choice = choose_method(None, says, closed("fp8"))
        named = choose_method(None, says, closed("fp8", automatic=False))
    assert (choice.name, choice.platform.builtin_methods) == ("deepseek_v4_fp8", None)
    assert (named.name, named.platform.builtin_methods) == ("fp8", frozenset({"fp8"}))


@pytest.mark.parametrize("automatic", [False, True])
def test_a_closed_platform_keeps_its_own_claims_and_what_it_has_refused(automatic, monkeypatch):
    monkeypatch.setattr(
        "quantdock.registry.claims.get_platform", lambda name: get_platform("cpu:generic")
    )
    here = closed("fp8", automatic=automatic, name="cpu_amx", arch="amx")
    own = claimer("acme_a", Claims, frozenset({"cpu_amx"}))
    others = claimer("acme_b", ClaimsToo, frozenset({"cpu"})), claimer("acme_c", ClaimsOnCpus)
    says = file("fp8", special=True)
    with use_plugins("quantdock_cpu_amx.plugin", own, *others):
        assert choose_method(None, says, here).name == "acme_a"
    with use_plugins("quantdock_cpu_amx.plugin", others[1]):
        assert choose_method(None, says, here).name == "fp8"


@pytest.mark.parametrize("block", [None, file("fp8")])
def test_an_empty_name_is_no_name(block):
    with use_plugins(), pytest.raises(QuantDockError, match="''"):
        choose("", block)


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("FP8", "fp8"),
        ("nvfp4", "nvfp4"),
        ("nvfp4_online", "nvfp4"),
        ("mxfp4-online", "mxfp4"),
        ("ptpc_fp8", "fp8_per_channel"),
        ("int8_per_channel", "int8_per_channel_weight_only"),
        ("none", "none"),
        ("unquant", "none"),
        ("gptq", "gptq"),
        ("fp9", "fp9"),
    ],
)
def test_choices_are_spelled_as_methods_are(typed, meant):
    with use_plugins():
        assert settle_choices({"a": typed}, get_platform("cpu:generic")) == {"a": meant}
