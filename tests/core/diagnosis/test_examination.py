"""``doctor`` as a whole: what stops a check, what is skipped for it, what it costs."""

from __future__ import annotations

import subprocess
import sys

import pytest

import toy_llama as toy
from examined import statuses, told
from quantdock.diagnosis import checks, examination
from quantdock.diagnosis.case import Case, Options
from quantdock.errors import CheckpointError


def test_outcomes_are_heard_one_after_another(examine):
    heard = []
    report = examine(quick=True, on_outcome=heard.append)
    assert heard == list(report.outcomes)
    assert [outcome.number for outcome in heard] == [1, 2, 3, 4, 5, 6, 7, 8]


def test_a_check_that_breaks_is_a_fault_and_the_others_go_on(examine, monkeypatch):
    broken = checks.Check(name="shapes", title="t", target="operator:truth", needs=())
    found = tuple(broken if c.name == "shapes" else c for c in checks.CHECKS)
    monkeypatch.setattr(examination, "CHECKS", found)
    monkeypatch.setattr(Case, "__bool__", raise_zero_division, raising=False)
    report = examine(quick=True)
    assert statuses(report)["shapes"] == "fail"
    assert "The check shapes was stopped by ZeroDivisionError: by zero" in told(report, "shapes")
    assert statuses(report)["kernels"] == "pass"


def raise_zero_division(self):
    raise ZeroDivisionError("by zero")


def test_a_quick_examination_loads_no_torch(tmp_path):
    folder = toy.write(tmp_path / "toy", toy.llama("128x128"), toy.BLOCK)
    code = (
        "import sys, quantdock; "
        f"report = quantdock.doctor({str(folder)!r}, platform='cpu', quick=True); "
        "sys.exit(report.exit_code or 2 * ('torch' in sys.modules))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 0, f"torch was loaded: {result.stderr}"


def test_a_fact_that_cannot_be_had_says_why_each_time():
    case = Case("/no/such/folder", Options())
    assert case.get("checkpoint") is None
    assert isinstance(case.fault("checkpoint"), CheckpointError)
    with pytest.raises(CheckpointError, match="There is no folder /no/such/folder"):
        _ = case.config


def test_a_pattern_of_layers_that_matches_none_is_said(examine):
    report = examine(layers="layers.9", quick=True)
    assert "--layers layers.9 matches no layer." in told(report, "dispatch")
