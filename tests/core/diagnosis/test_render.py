"""What a report looks like."""

from __future__ import annotations

from io import StringIO

from rich.console import Console

from quantdock.diagnosis import Finding, Outcome, Report
from quantdock.diagnosis.render import render_end, render_outcome
from quantdock.diagnosis.report import note


def printed(show) -> list[str]:
    console = Console(file=StringIO(), width=60, highlight=False)
    show(console)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


def outcome(status: str, *findings: Finding, number: int = 6) -> Outcome:
    return Outcome(
        number=number, name="scales", title="", status=status, summary="7 read", findings=findings
    )


def test_a_block_has_status_summary_what_why_and_remedy():
    found = Finding(
        level="fail",
        what="a sentence that is longer than what a line of sixty columns has room for",
        why=("[0, 1] is NaN", *(f"reason {i}" for i in range(9))),
        todo="Quantize again.",
    )
    lines = printed(lambda console: render_outcome(outcome("fail", found, note("n", "w")), console))
    assert lines[0] == "6 fail  scales      7 read"
    assert lines[1] == "    fail: a sentence that is longer than what a line of"
    assert lines[2] == "          sixty columns has room for"
    assert lines[3] == "          [0, 1] is NaN"
    assert lines[11] == "          and 2 more reasons"
    assert lines[12] == "       -> Quantize again."
    assert lines[13:] == ["    note: n", "          w"]


def test_the_end_names_where_to_begin():
    def end(*outcomes: Outcome) -> str:
        report = Report(checkpoint="", method="", platform="", dtype="", outcomes=outcomes)
        return printed(lambda console: render_end(report, console))[-1]

    assert end(outcome("warn"), outcome("fail", number=7), outcome("fail", number=8)) == (
        "2 of 3 checks failed; begin with 7 (scales)."
    )
    assert end(outcome("warn"), outcome("skip")) == "Nothing failed; 1 with warnings."
    assert end(outcome("pass")) == "Nothing is wrong that these checks can see."
