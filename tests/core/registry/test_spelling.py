"""Spelling: what counts as the same name, and the closest one."""

from __future__ import annotations

import pytest

from quantdock.registry.spelling import closest, spell


@pytest.mark.parametrize("typed", ["auto_round", "AUTO-ROUND", " Auto_Round\n"])
def test_case_and_separator_do_not_matter(typed):
    assert spell(typed) == "auto-round"


@pytest.mark.parametrize(
    ("typed", "near"),
    [
        ("fp9", "fp8"),
        ("compresed_tensors", "compressed-tensors"),
        ("gtpq", "gptq"),
        ("xyzzy", None),
        ("", None),
    ],
)
def test_the_closest_name(typed, near):
    assert closest(typed, ["awq", "fp8", "gptq", "compressed-tensors"]) == near


@pytest.mark.parametrize("typed", ["nonsense", "phone", "on", "unknown", "bananas"])
def test_a_few_common_letters_are_not_near(typed):
    assert closest(typed, ["none", "awq", "fp8", "online"]) is None
