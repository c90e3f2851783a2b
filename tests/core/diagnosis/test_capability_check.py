"""Check 3 finds what the platform lacks, what it runs instead, and risky dtypes."""

from __future__ import annotations

from dataclasses import replace

import pytest

import toy_llama as toy
from examined import noted, statuses, told
from quantdock import Kernel, SchemeSet, SpecSet, get_platform
from quantdock.testing.plugins import make_plugin, use_plugins


def test_float16_for_a_model_known_as_bfloat16_is_a_risk(examine):
    report = examine(dtype="float16", quick=True)
    assert report["capability"].status == "warn"
    text = told(report, "capability")
    assert "The model is known as bfloat16 and would run in float16." in text
    assert "config.json states bfloat16" in text
    assert "5 tensors are stored as bfloat16" in text
    assert "Use --dtype bfloat16 or float32" in text
    assert examine(dtype="bfloat16", quick=True)["capability"].status == "pass"


def test_weights_beyond_float16_are_found_where_they_are_read(examine):
    def reach_far(tensors):
        tensors[f"{toy.EMBEDDING}.weight"][5, 7] = 1e30

    report = examine(reach_far, dtype="float16")
    assert report["capability"].status == "warn"
    assert f"{toy.EMBEDDING}.weight reaches 1e+30, and float16 ends at 65504" in told(
        report, "scales"
    )
    assert statuses(report)["scales"] == "fail"
    assert examine(reach_far, dtype="bfloat16")["scales"].status == "pass"


def test_a_dtype_that_the_platform_lacks_is_found(examine):
    report = examine(dtype="int8")
    assert report["capability"].status == "fail"
    assert "dtype=int8 cannot be used on cpu" in told(report, "capability")
    assert report["numbers"].summary.endswith("(check 3)")


def test_a_stated_dtype_that_is_replaced_is_said(examine):
    report = examine(dtype="auto", fields={"dtype": "float64"}, quick=True)
    assert "config.json states float64, and " in told(report, "capability")


def test_weights_that_do_not_fit_are_a_warning(examine):
    small = replace(get_platform("cpu"), memory_bytes=100_000)
    report = examine(platform=small, quick=True)
    assert "cpu" in told(report, "capability") and "has 100.0 kB" in told(report, "capability")


def test_substitutions_of_another_device_are_noted(examine):
    pytest.importorskip("quantdock_cuda", reason="needs the plugin quantdock-cuda")
    report = examine(platform="cuda:sm_80", quick=True)
    text = noted(report, "capability")
    assert "cuda:sm_80 is described: it is not this machine" in text
    assert "runs as fp8_e4m3[128x128]" in text and "no fp8 tensor cores" in text


def test_the_features_that_would_allow_more_are_noted(examine):
    any_scheme = SchemeSet(weight=SpecSet(), activation=SpecSet())
    fast = Kernel(
        name="fast", target="acme:Fast", accepts=any_scheme, requires=frozenset({"matrix_unit"})
    )
    with use_plugins(make_plugin("acme_fast", get_kernels=lambda platform: (fast,))):
        report = examine(quick=True)
    assert "kernel fast runs fp8_e4m3[128x128]" in noted(report, "capability")
    assert "on devices with matrix_unit, which cpu:" in noted(report, "capability")
