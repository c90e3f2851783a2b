"""Entries that matched, and entries that name nothing."""

from __future__ import annotations

import pytest

from quantdock.plan.ignore_lists import entry_text, sort_entries

TENSORS = (
    "model.layers.0.mlp.gate.weight",
    "model.layers.0.mlp.gate.e_score_correction_bias",
    "model.layers.0.input_layernorm.weight",
    "lm_head.weight",
)


def entry(text: str) -> str:
    return f"ignored_layers[0] = {text!r}"


def test_matched_entries_keep_their_order():
    listed = [entry("lm_head"), entry("a"), entry("model.layers.0")]
    found = sort_entries(listed, [entry("a")], TENSORS)
    assert found.matched == (entry("lm_head"), entry("model.layers.0"))
    assert found.unmatched == (entry("a"),)


@pytest.mark.parametrize(
    ("text", "is_lost"),
    [
        ("model.layers.0.input_layernorm", False),
        ("model.layers.0.mlp.gate.e_score_correction_bias", False),
        ("e_score_correction_bias", False),
        ("gate", False),
        ("layers.0.*", False),
        ("model.layers.*.mlp.gate", False),
        ("*.gate", False),
        ("model.layers.*.mlp.router", True),
        ("layers.9.mlp", True),
        ("ate", True),
        ("re:.*vision.*", True),
        (r"re:.*mlp\.gate$", False),
        (r"-:model\.layers\.0\.mlp\.gate(\.|$)", False),
        (r"-:model\.layers\.1\.mlp\.gate(\.|$)", True),
        (r"+:layers\.0", True),
    ],
)
def test_an_entry_that_names_something_in_the_file_is_no_mistake(text, is_lost):
    found = sort_entries([entry(text)], [entry(text)], TENSORS)
    assert found.unmatched == ((entry(text),) if is_lost else ())


def test_the_text_of_an_entry():
    assert entry_text("choices['a.b'] = 'none'") == "none"
    assert entry_text('ignore[0] = "it\'s"') == "it's"
    assert entry_text("plain") == "plain"
    assert entry_text("dynamic['-:a\\\\.b']") == r"-:a\.b"
