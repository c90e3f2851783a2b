"""Check 1 finds names that mean nothing, and plugins that might have known them."""

from __future__ import annotations

import toy_llama as toy
from examined import statuses, told
from quantdock.testing.plugins import make_plugin, use_plugins


def test_a_misspelt_method_is_found_and_the_rest_skipped(examine):
    report = examine(block={**toy.BLOCK, "quant_method": "fp88"})
    assert statuses(report) == {
        "name": "fail",
        "metadata": "pass",
        **dict.fromkeys(("capability", "dispatch", "shapes", "scales", "kernels"), "skip"),
        "numbers": "skip",
    }
    assert "There is no quantization method 'fp88' on cpu:" in told(report, "name")
    assert "asked for by config.json: quantization_config" in told(report, "name")
    assert "Did you mean fp8?" in told(report, "name")
    assert report["scales"].summary.endswith("(check 1)")
    assert report.exit_code == 1


def test_a_plugin_that_failed_is_named(examine):
    broken = make_plugin("acme_fp88", CONTRACT=99)
    with use_plugins(broken):
        unknown = examine(block={**toy.BLOCK, "quant_method": "fp88"}, quick=True)
        known = examine(quick=True)
    assert "acme-fp88 0.0.0" in told(unknown, "name"), "it may have known the name"
    assert known["name"].status == "warn"
    assert "The plugin acme-fp88 0.0.0 (acme_fp88) could not be used." in told(known, "name")
    assert "CONTRACT = 99" in told(known, "name")


def test_an_unknown_platform_is_found(examine):
    report = examine(platform="abacus")
    assert "No installed plugin brings the platform 'abacus'" in told(report, "name")
    assert statuses(report)["metadata"] == "pass"
    assert report.platform == "" and report.method == ""


def test_user_and_file_that_do_not_combine_are_found(examine):
    report = examine(quantization="mxfp8", quick=True)
    assert "quantization='mxfp8' cannot be combined with a checkpoint of fp8" in told(
        report, "name"
    )


def test_a_name_that_comes_later_says_so(examine):
    report = examine(block={"quant_method": "aqlm"}, quick=True)
    assert "aqlm is known and not supported yet on cpu" in told(report, "name")


def test_an_alias_passes_with_what_it_stands_for(examine):
    report = examine(block=None, tile=None, quantization="ptpc_fp8", quick=True)
    assert report["name"].status == "pass"
    assert report["name"].details["method"] == "fp8_per_channel"
    assert report["name"].details["distribution"] == "quantdock"
