"""Asking plugins: ranks, provenance, answers that are ignored, hooks that raise, ties."""

from __future__ import annotations

import pytest

from quantdock import Kernel, MethodName, Platform, PlatformEntry, SchemeSet, SpecSet
from quantdock.configs.fp8 import Fp8Config
from quantdock.errors import PluginConflictError, PluginLoadError
from quantdock.registry import dispatch_for, failures, resolve_method
from quantdock.registry.settings import Settings
from quantdock.testing import make_plugin, use_plugins

TOY = Platform(name="toyacc", arch="t1", device="toy")
CPU = Platform(name="cpu", arch="generic", device="cpu")


class First(Fp8Config):
    """One meaning of fp8."""


class Second(Fp8Config):
    """Another one."""


def describe(arch):
    return TOY


def owner(name="acme_owner", **members):
    entry = PlatformEntry(
        name="toyacc",
        rank=50,
        probe=f"{__name__}:describe",
        describe=f"{__name__}:describe",
        archs=("t1",),
    )
    return make_plugin(name, get_platforms=lambda: (entry,), **members)


def means(config, name="fp8"):
    return lambda quantization, platform: config if quantization == name else None


def on_toyacc(config):
    return lambda quantization, platform: (
        config if (quantization, platform.name) == ("fp8", "toyacc") else None
    )


def test_the_owner_comes_first_then_general_plugins_then_the_core():
    general = make_plugin("acme_general", get_quantization_config=means(Second))
    with use_plugins(general, owner(get_quantization_config=on_toyacc(First))) as registry:
        assert resolve_method("fp8", TOY).config is First
        assert resolve_method("fp8", TOY).distribution == "acme-owner"
        assert resolve_method("fp8", CPU).config is Second
        assert resolve_method("mxfp8", TOY).distribution == "quantdock"
        asked = registry.ask("get_quantization_config", TOY, quantization="fp8")
        assert [a.plugin.distribution for a in asked.given] == [
            "acme-owner",
            "acme-general",
            "quantdock",
        ]
        assert failures() == ()


def test_an_owner_that_answers_for_others_is_ignored_and_recorded():
    with use_plugins(owner(get_quantization_config=means(First))):
        assert resolve_method("fp8", CPU).config is Fp8Config
        assert [(f.stage, str(f)) for f in failures()] == [
            (
                "ignored",
                "acme-owner 0.0.0 (acme_owner): get_quantization_config(fp8, cpu:generic) "
                "answered for a platform that it does not own",
            )
        ]


def test_a_hook_that_raises_takes_nobody_down_and_is_noted():
    def fail(quantization, platform):
        raise RuntimeError("half\ninstalled")

    broken = make_plugin("acme_broken", get_quantization_config=fail)
    with use_plugins(broken, make_plugin("acme_fine", get_quantization_config=means(First))):
        found = resolve_method("fp8", CPU)
        assert found.config is First
        reason = "get_quantization_config(fp8, cpu:generic) raised RuntimeError: half installed"
        assert found.notes == (f"not taken: acme-broken 0.0.0 (acme_broken): {reason}",)
    with (
        use_plugins(broken, settings=Settings(strict=True)),
        pytest.raises(PluginLoadError, match="half installed"),
    ):
        resolve_method("fp8", CPU)


@pytest.mark.parametrize("answer", ["quantdock.configs.fp8:Fp8Config", int, Fp8Config()])
def test_what_is_no_config_class_is_recorded(answer):
    with use_plugins(make_plugin("acme_odd", get_quantization_config=means(answer))):
        assert resolve_method("fp8", CPU).config is Fp8Config
        assert failures()[0].reason == (
            f"its config for fp8 is {answer!r}, no QuantizationConfig class"
        )


def rivals(**second):
    return (
        make_plugin("acme_one", get_quantization_config=means(First)),
        make_plugin("acme_two", get_quantization_config=means(Second), **second),
    )


def test_two_answers_of_one_rank_name_both_and_the_settings():
    with use_plugins(*rivals()), pytest.raises(PluginConflictError) as caught:
        resolve_method("fp8", CPU)
    assert str(caught.value) == (
        "acme-one 0.0.0 and acme-two 0.0.0 both say what fp8 means on cpu:generic, and differ.\n"
        f"  acme-one 0.0.0 says {__name__}.First\n"
        f"  acme-two 0.0.0 says {__name__}.Second\n"
        "Set QUANTDOCK_PREFER_PLUGIN=acme-one or acme-two; or load only one of them with "
        "QUANTDOCK_PLUGINS; or let the later one state "
        'REPLACES = {"fp8": "acme-one"}.'
    )


def test_equal_answers_are_no_tie():
    one = make_plugin("acme_one", get_quantization_config=means(First))
    two = make_plugin("acme_two", get_quantization_config=means(First))
    with use_plugins(one, two):
        assert resolve_method("fp8", CPU).config is First


def test_replaces_breaks_a_tie_and_the_user_beats_it():
    plugins = rivals(REPLACES={"FP8": "acme_one"})
    with use_plugins(*plugins):
        assert resolve_method("fp8", CPU).config is Second
    with use_plugins(*plugins, settings=Settings(prefer=("acme-one",))):
        assert resolve_method("fp8", CPU).config is First


def test_two_that_replace_each_other_are_a_tie():
    one = make_plugin(
        "acme_one", get_quantization_config=means(First), REPLACES={"fp8": "acme-two"}
    )
    two = make_plugin(
        "acme_two", get_quantization_config=means(Second), REPLACES={"fp8": "acme-one"}
    )
    with use_plugins(one, two), pytest.raises(PluginConflictError):
        resolve_method("fp8", CPU)


def test_two_rows_of_one_name_are_a_tie():
    def row(target):
        return lambda: (MethodName(name="toy", summary="a toy", target=target),)

    one = make_plugin("acme_one", get_quantization_methods=row(f"{__name__}:First"))
    two = make_plugin("acme_two", get_quantization_methods=row(f"{__name__}:Second"))
    with (
        use_plugins(one, two),
        pytest.raises(PluginConflictError, match="both add the method toy on cpu:generic"),
    ):
        resolve_method("toy", CPU)


def kernel(name, **fields):
    return Kernel(name=name, target="acme:K", accepts=SchemeSet(weight=SpecSet()), **fields)


def test_kernels_come_from_the_owner_first_and_the_core_last():
    def offers(*kernels):
        return lambda platform: kernels if platform.name == "toyacc" else ()

    with use_plugins(
        make_plugin("acme_general", get_kernels=offers(kernel("g"), kernel("b", note="general"))),
        owner(get_kernels=offers(kernel("b", note="owner"), kernel("a"))),
    ):
        kernels = dispatch_for(TOY).kernels
        assert [k.name for k in kernels][:3] == ["b", "a", "g"]
        assert kernels[0].note == "owner"
        assert kernels[-1].is_reference


def test_two_kernels_of_one_name_and_rank_are_a_tie():
    one = make_plugin("acme_one", get_kernels=lambda platform: (kernel("k"),))
    two = make_plugin("acme_two", get_kernels=lambda platform: (kernel("k", n_multiple=8),))
    with (
        use_plugins(one, two),
        pytest.raises(PluginConflictError, match="both offer kernel k on cpu:generic, and differ"),
    ):
        dispatch_for(CPU)


def test_offers_of_another_kind_are_recorded():
    with use_plugins(make_plugin("acme_odd", get_kernels=lambda platform: ["fast"])):
        assert dispatch_for(CPU).kernels[-1].is_reference
        assert failures()[0].reason == "get_kernels(cpu:generic) gave 'fast', no Kernel"


def test_the_environment_requires_a_kernel_unless_the_policy_does(monkeypatch):
    from quantdock import Policy

    monkeypatch.setenv("QUANTDOCK_KERNEL", "reference")
    with use_plugins():
        assert dispatch_for(CPU).policy.require == "reference"
        assert dispatch_for(CPU, Policy(require="other")).policy.require == "other"
        monkeypatch.delenv("QUANTDOCK_KERNEL")
        assert dispatch_for(CPU).policy == Policy()
