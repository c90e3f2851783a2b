"""Descriptors that a plugin writes: an impossible field is refused where it is written."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from quantdock import Kernel, MethodName, Platform, PlatformEntry, SchemeSet, SpecSet, Substitution
from quantdock.errors import DescriptorError
from quantdock.problem import ExpertSet
from quantdock.registry import failures
from quantdock.registry.offers import dispatch_for
from quantdock.testing import make_plugin, use_plugins

ANY = SchemeSet(weight=SpecSet())
KERNEL = Kernel(name="acme", target="acme:Linear", accepts=ANY)
SWAP = Substitution(name="swap", source=ANY, change="weight_only", why="it is", accuracy="closer")
NAME = MethodName(name="acme_fp8", summary="fp8", alias_of="fp8")
ENTRY = PlatformEntry(name="acme", rank=100, probe="a:p", describe="a:d", archs=("a1",))
ACME = Platform(name="acme", arch="a1", device="cpu")
NO_SET = "is no set of words: write frozenset({"


@pytest.mark.parametrize(
    ("make", "what", "why"),
    [
        (
            lambda: SpecSet(elements=frozenset({"fp8_e4m3fn"})),
            "This SpecSet has impossible fields.",
            "uint8 (did you mean fp8_e4m3fnuz or fp8_e4m3?)",
        ),
        (lambda: SpecSet(elements="fp8_e4m3"), "This SpecSet", f"elements='fp8_e4m3' {NO_SET}"),
        (
            lambda: SpecSet(granularities=frozenset({"row"})),
            "This SpecSet",
            "granularities has 'row'; known: tensor, channel, group, block",
        ),
        (
            lambda: SpecSet(scales=frozenset({"fp32"})),
            "This SpecSet",
            "scales has 'fp32'; known: f32",
        ),
        (
            lambda: SpecSet(cols_multiple=0),
            "This SpecSet",
            "cols_multiple=0 is no whole number from",
        ),
        (
            lambda: SchemeSet(weight="fp8"),
            "This SchemeSet",
            "weight='fp8' is of type str, not SpecSet",
        ),
        (
            lambda: replace(SWAP, change="weightonly"),
            "Substitution swap has impossible fields.",
            "known: weight_only, int8_per_token (did you mean weight_only?)",
        ),
        (lambda: replace(SWAP, source=SpecSet()), "Substitution swap", "not SchemeSet"),
        (lambda: replace(SWAP, lacks="fp8_mma"), "Substitution swap", f"lacks='fp8_mma' {NO_SET}"),
        (
            lambda: replace(KERNEL, accepts=SpecSet()),
            "Kernel acme has impossible fields.",
            "is no tuple of SchemeSet",
        ),
        (
            lambda: replace(KERNEL, requires=["mma"]),
            "Kernel acme",
            "requires=['mma'] is no set of words: write frozenset({'mma'})",
        ),
        (
            lambda: replace(KERNEL, dtypes=frozenset({"bf16"})),
            "Kernel acme",
            "dtypes has 'bf16'; known: float64, float32, float16, bfloat16 (did you mean",
        ),
        (
            lambda: replace(KERNEL, kinds=frozenset({"expert"})),
            "Kernel acme",
            "kinds has 'expert'; known: linear, input, experts (did you mean experts?)",
        ),
        (lambda: replace(KERNEL, k_multiple=0), "Kernel acme", "k_multiple=0 is no whole number"),
        (
            lambda: ExpertSet(activations=frozenset({"silu"}), orders=frozenset({"up_gate"})),
            "This ExpertSet has impossible fields.",
            "orders has 'up_gate'; known: gate_up, interleaved, up",
        ),
        (
            lambda: replace(NAME, target="acme:Fp8"),
            "MethodName acme_fp8",
            "exactly one of target, alias_of and remedy is given; it has target and alias_of",
        ),
        (lambda: replace(NAME, alias_of=None), "MethodName acme_fp8", "it has none"),
        (lambda: replace(ENTRY, archs="a1"), "PlatformEntry acme", "archs='a1' is no tuple of str"),
        (lambda: replace(ENTRY, rank="high"), "PlatformEntry acme", "is of type str, not int"),
        (
            lambda: replace(ACME, dtypes=("bf16",)),
            "Platform acme",
            "dtypes has 'bf16'; known: float",
        ),
        (lambda: replace(ACME, features={"mma"}), "Platform acme", "write frozenset({'mma'})"),
    ],
)
def test_an_impossible_field_is_refused(make: Callable[[], Any], what: str, why: str) -> None:
    with pytest.raises(DescriptorError) as refused:
        make()
    assert refused.value.what.startswith(what)
    assert any(why in reason for reason in refused.value.why), refused.value.why


def test_a_plugin_with_an_impossible_descriptor_loses_that_answer_and_says_why() -> None:
    plugin = make_plugin(
        "acme_odd", get_substitutions=lambda platform: (replace(SWAP, change="weightonly"),)
    )
    with use_plugins(plugin):
        assert dispatch_for("cpu:generic").substitutions == ()
        (failure,) = failures()
        assert failure.reason == (
            "get_substitutions(cpu:generic) raised DescriptorError: Substitution swap has "
            "impossible fields. change has 'weightonly'; known: weight_only, int8_per_token (did "
            "you mean weight_only?). Correct it in the plugin that writes it."
        )
