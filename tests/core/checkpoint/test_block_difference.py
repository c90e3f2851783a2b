"""What two blocks of one checkpoint say differently."""

from __future__ import annotations

from quantdock.checkpoint.block_difference import differences


def test_case_order_and_null_lists_make_no_difference():
    used = {"version": "GEMM", "modules_to_not_convert": None, "bits": 4}
    other = {"version": "gemm", "modules_to_not_convert": [], "w_bit": 4}
    assert differences(used, other) == []


def test_only_settings_that_both_have_are_compared():
    assert differences({"bits": 4, "sym": True}, {"bits": 8}) == ["bits is 4 and 8"]


def test_how_the_quantizer_worked_is_not_compared():
    assert differences({"damp_percent": 0.1, "meta": {}}, {"damp_percent": 0.01, "meta": 1}) == []


def test_a_list_against_null_and_long_values():
    assert differences({"ignore": ["a"]}, {"ignore": None}) == ['ignore is ["a"] and null']
    (line,) = differences({"config_groups": {"x": "y" * 200}}, {"config_groups": {}})
    assert len(line) < 150 and line.endswith("... and {}")
