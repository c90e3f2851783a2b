"""The report: its status, its exit code, its JSON."""

from __future__ import annotations

import json

import pytest

from quantdock.diagnosis import Finding, Outcome, Report
from quantdock.diagnosis.report import Result, note
from quantdock.errors import ConfigError


def outcome(number: int, status: str) -> Outcome:
    return Outcome(number=number, name=f"n{number}", title="t", status=status, summary="s")


def report(*found: str) -> Report:
    outcomes = tuple(outcome(i, status) for i, status in enumerate(found, 1))
    return Report(checkpoint="x", method="fp8", platform="cpu", dtype="", outcomes=outcomes)


@pytest.mark.parametrize(
    ("found", "status", "code"),
    [
        (("pass", "skip"), "pass", 0),
        (("pass", "warn", "skip"), "warn", 0),
        (("warn", "fail", "pass"), "fail", 1),
    ],
)
def test_the_worst_outcome_counts(found, status, code):
    assert report(*found).status == status
    assert report(*found).exit_code == code


def test_notes_pass_and_a_skip_stays_one():
    assert Result(summary="s", findings=(note("a"),)).status == "pass"
    assert Result.skip("why").status == "skip"
    fault = Finding.of(ConfigError("what", why=["because"], todo="do"))
    assert (fault.level, fault.what, fault.why, fault.todo) == ("fail", "what", ("because",), "do")
    assert Result(summary="s", findings=(note("a"), fault)).status == "fail"


def test_json_has_the_fields_by_their_names():
    content = json.loads(report("pass", "fail").to_json())
    assert list(content) == [
        "schema", "status", "checkpoint", "method", "platform", "dtype", "outcomes"
    ]  # fmt: skip
    assert (content["schema"], content["status"]) == (1, "fail")
    assert content["outcomes"][1] == {
        "number": 2,
        "name": "n2",
        "title": "t",
        "status": "fail",
        "summary": "s",
        "findings": [],
        "details": {},
    }


def test_an_outcome_is_found_by_its_name():
    assert report("pass", "warn")["n2"].status == "warn"
