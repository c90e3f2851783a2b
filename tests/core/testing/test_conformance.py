"""The conformance suite finds what is wrong with a plugin, and names what it skips."""

from __future__ import annotations

import sys
from unittest import SkipTest

import pytest

from quantdock import Absent, Kernel, MethodName, Platform, PlatformEntry, SchemeSet, SpecSet
from quantdock.kernel import Substitution
from quantdock.testing import PluginConformance, make_plugin

ANYTHING = SchemeSet(weight=SpecSet())


def gone(index):
    return Absent(reason="no toy driver")


def breaks(index):
    raise OSError("toy driver too old")


def describe(arch):
    return Platform(name="toyacc", arch=arch, device="toy", features=frozenset({"toy_mma"}))


def suite(monkeypatch, **members):
    entry = PlatformEntry(
        name="toyacc",
        rank=1,
        probe=f"{__name__}:{members.pop('probe', gone).__name__}",
        describe=f"{__name__}:describe",
        archs=("t1",),
    )
    module = make_plugin("acme_suite", get_platforms=lambda: (entry,), **members)
    monkeypatch.setitem(sys.modules, "acme_suite", module)
    checks = PluginConformance()
    checks.plugin = "acme_suite"
    return checks


def kernels(*rows):
    return lambda platform: rows if platform.name == "toyacc" else ()


def kernel(**fields):
    return Kernel(**{"name": "k", "target": "acme_suite:K", "accepts": ANYTHING, **fields})


def swap(**fields):
    given = {"name": "s", "source": ANYTHING, "change": "weight_only", "why": "w", "accuracy": "a"}
    return Substitution(**{**given, **fields})


def row(**fields):
    return MethodName(**{"name": "toy", "summary": "a toy", **fields})


def test_a_missing_device_is_named(monkeypatch):
    with pytest.raises(SkipTest, match="needs a toyacc device: no toy driver"):
        suite(monkeypatch).test_probed_platform_has_facts()


@pytest.mark.parametrize(
    ("check", "members", "text"),
    [
        ("test_refuses_unknown_architectures", {}, "made toyacc:no-such-arch of 'no-such-arch'"),
        ("test_kernels_are_sound", {"get_kernels": kernels(kernel(target="K"))}, "k: 'K'"),
        ("test_kernels_are_sound", {"get_kernels": kernels(kernel(tolerance=2.0))}, "k: 2.0"),
        (
            "test_needed_features_exist",
            {"get_kernels": kernels(kernel(requires=frozenset({"toy_mmma"})))},
            "k needs ['toy_mmma'], which no architecture has",
        ),
        (
            "test_kernel_targets_exist",
            {"get_kernels": kernels(kernel(target="quantdock.platform:Platform"))},
            "has no ['prepare', 'apply', 'restore', 'warmup']",
        ),
        (
            "test_kernels_accept_something",
            {"get_kernels": kernels(kernel(accepts=SchemeSet(weight=SpecSet(dynamic=True))))},
            "k accepts none of",
        ),
        (
            "test_substitutions_change_something",
            {"get_substitutions": kernels(swap())},
            "s changes nothing in",
        ),
        (
            "test_substitutions_apply_somewhere",
            {"get_substitutions": kernels(swap(needs=frozenset({"other_mma"})))},
            "s applies nowhere",
        ),
        (
            "test_tuner_target_exists",
            {"get_tuner": lambda platform: "quantdock.platform:Platform"},
            "has no ['why_not', 'plan', 'state']",
        ),
        ("test_tuner_target_exists", {"get_tuner": lambda platform: "tuner"}, "no module:class"),
        (
            "test_rows_say_something",
            {"get_quantization_methods": lambda: (row(alias_of=" "),)},
            "toy: empty",
        ),
        (
            "test_rows_have_names_of_their_own",
            {
                "get_quantization_methods": lambda: (
                    row(alias_of="fp8"),
                    row(name="Toy", alias_of="awq"),
                )
            },
            "rows of one name: ['toy']",
        ),
        (
            "test_aliases_lead_to_names",
            {"get_quantization_methods": lambda: (row(alias_of="fp88"),)},
            "toy leads to fp88, unknown",
        ),
        (
            "test_targets_are_configs",
            {"get_quantization_methods": lambda: (row(target="quantdock.configs.fp8:Fp8Config"),)},
            "Fp8Config is named fp8, and stands for toy",
        ),
        (
            "test_answers_without_failures",
            {"get_kernels": kernels("fast")},
            "get_kernels(toyacc:t1) gave 'fast', no Kernel",
        ),
        (
            "test_is_silent_on_platforms_of_others",
            {"get_kernels": lambda platform: (kernel(),)},
            "answered for a platform that it does not own",
        ),
    ],
)
def test_a_fault_is_found(monkeypatch, check, members, text):
    with pytest.raises(AssertionError) as caught:
        getattr(suite(monkeypatch, **members), check)()
    assert text in str(caught.value)


def test_a_probe_that_raises_is_found(monkeypatch):
    with pytest.raises(OSError, match="toy driver too old"):
        suite(monkeypatch, probe=breaks).test_probe_answers_on_any_machine()


def test_a_plugin_that_does_not_load_fails_with_the_reason(monkeypatch):
    checks = suite(monkeypatch, CONTRACT=7)
    with pytest.raises(AssertionError, match="it states CONTRACT = 7"):
        checks.test_describes_every_architecture()
