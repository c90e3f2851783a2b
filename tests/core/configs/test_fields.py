"""Reading JSON fields: S11, S35."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from quantdock.configs.fields import Fields
from quantdock.errors import ConfigError


def test_absent_and_null_are_the_default() -> None:
    fields = Fields({"fmt": None, "weight_block_size": None, "ignored_layers": None}, "fp8")
    assert fields.choice("fmt", {"e4m3": 1}, 2) == fields.choice("other", {"e4m3": 1}, 2) == 2
    assert fields.tile("weight_block_size") is None
    assert fields.names("ignored_layers", "modules_to_not_convert") == ()
    assert fields.positive("activation_scale_ub") is None


def test_words_count_in_any_case() -> None:
    assert Fields({"version": " GEMM "}, "awq").choice("version", {"gemm": 1}, 0) == 1


def test_lists_of_all_spellings_count_and_keep_their_place() -> None:
    fields = Fields({"ignored_layers": ["a", "b"], "modules_to_not_convert": ["c"]}, "fp8")
    found = fields.names("modules_to_not_convert", "ignored_layers")
    assert [entry.source for entry in found] == [
        "modules_to_not_convert[0] = 'c'",
        "ignored_layers[0] = 'a'",
        "ignored_layers[1] = 'b'",
    ]


def test_numbers_under_any_spelling() -> None:
    fields = Fields({"w_bit": 4, "q_group_size": 128, "sym": False, "lm_head": None}, "awq")
    assert fields.bits("bits", "w_bit", allowed=(2, 4)) == 4
    assert fields.group_size("group_size", "q_group_size") == 128
    assert Fields({"group_size": -1}, "awq").group_size("group_size") is None
    assert (fields.flag("sym"), fields.flag("lm_head")) == (False, None)
    assert fields.rest() == {}


def read_all(block: dict[str, Any]) -> None:
    fields = Fields(block, "demo")
    fields.choice("bnb_4bit_quant_type", {"nf4": None, "fp4": None}, None)
    fields.tile("tile")
    fields.names("names")
    fields.positive("bound")
    fields.flag("sym")
    fields.bits("bits", "w_bit", allowed=(2, 3, 4)) if block.keys() & {"bits", "w_bit"} else None
    fields.group_size("group_size") if "group_size" in block else None


@pytest.mark.parametrize(
    ("block", "text"),
    [
        ({"bnb_4bit_quant_type": "nf9"}, "bnb_4bit_quant_type is 'nf9'.\n  allowed: 'nf4', 'fp4'"),
        ({"bnb_4bit_quant_type": 4}, "bnb_4bit_quant_type is 4"),
        ({"tile": [128]}, r"tile is \[128\].\n  allowed: two positive integers"),
        ({"tile": [0, 128]}, r"tile is \[0, 128\]"),
        ({"tile": [True, 128]}, r"tile is \[True, 128\]"),
        ({"tile": "128"}, "tile is '128'"),
        ({"names": "lm_head"}, "names is 'lm_head'.\n  allowed: a list of names, or null"),
        ({"names": [3]}, r"names is \[3\]"),
        ({"bound": 0}, "bound is 0.\n  allowed: a number above zero"),
        ({"bound": "x"}, "bound is 'x'"),
        ({"bound": True}, "bound is True"),
        ({"sym": "yes"}, "sym is 'yes'.\n  allowed: true or false"),
        ({"bits": 5}, "bits is 5.\n  allowed: 2, 3, 4"),
        ({"bits": "4"}, "bits is '4'.\n  it is a string, and a number is expected\n  allowed: 2"),
        ({"group_size": "64"}, "group_size is '64'.\n  it is a string, and a number is expected"),
        ({"w_bit": True}, "w_bit is True"),
        ({"group_size": 0}, "group_size is 0.\n  allowed: a number of input columns, or -1"),
        ({"group_size": None}, "group_size is None"),
    ],
)
def test_impossible_value_names_field_and_value(block: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=f"demo: {text}") as caught:
        read_all(block)
    assert caught.value.facts == {"field": next(iter(block)), "value": next(iter(block.values()))}


def test_unknown_fields_are_kept_with_one_line_in_the_log(caplog: Any) -> None:
    block = {"quant_method": "demo", "_load_in_4bit": True, "names": [], "future": {"x": 1}}
    fields = Fields(block, "demo")
    fields.names("names")
    with caplog.at_level(logging.DEBUG, "quantdock"):
        assert fields.rest() == {"_load_in_4bit": True, "future": {"x": 1}}
    assert [r.getMessage() for r in caplog.records] == [
        "demo: fields kept and not used: _load_in_4bit, future"
    ]
