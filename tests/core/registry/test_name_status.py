"""What each name is worth on a platform, for tables."""

from __future__ import annotations

from quantdock import MethodName
from quantdock.platform import Platform
from quantdock.registry import name_status
from quantdock.registry.names import NAMES
from quantdock.testing import make_plugin, use_plugins

CLOSED = Platform(name="cpu", arch="generic", device="cpu", builtin_methods=frozenset({"fp8"}))


def test_every_name_has_a_row_that_says_how_it_runs():
    with use_plugins():
        rows = name_status("cpu:generic")
    assert [row.name for row in rows] == [row.name for row in NAMES]
    status = {row.name: (row.runs, row.status) for row in rows}
    assert status["fp8"] == (True, "checkpoints, at load")
    assert status["fp8_per_block"] == (True, "at load")
    assert status["w8a8_fp8"] == (True, "checkpoints")
    assert status["none"] == (True, "always")
    assert status["ptpc_fp8"] == (True, "same as fp8_per_channel")
    assert status["gptq_marlin"] == (True, "checkpoints")
    assert status["auto_awq"] == (True, "same as awq")
    assert status["aqlm"] == (False, "not yet")


def test_a_closed_set_shows():
    with use_plugins():
        status = {row.name: row.status for row in name_status(CLOSED)}
    assert (status["fp8"], status["awq"], status["aqlm"]) == (
        "checkpoints, at load",
        "not here",
        "not yet",
    )


def test_names_of_plugins_follow_and_show_whose_they_are():
    row = MethodName(name="toy", summary="a toy", target="quantdock.configs.fp8:Fp8Config")
    with use_plugins(make_plugin("acme_toy", get_quantization_methods=lambda: (row,))):
        last = name_status("cpu:generic")[-1]
    assert (last.name, last.runs, last.distribution) == ("toy", True, "acme-toy")
