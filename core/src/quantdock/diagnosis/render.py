"""A report for people: one block a check, short where nothing is wrong."""

from __future__ import annotations

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from quantdock.diagnosis.checks import CHECKS
from quantdock.diagnosis.report import Finding, Outcome, Report

_STYLES = {"pass": "bold green", "skip": "dim", "warn": "bold yellow", "fail": "bold red"}
_LEVELS = {"fail": "red", "warn": "yellow", "note": "dim"}
_REASONS = 8  # lines of why that are spelled out
_WIDTH = max(len(check.name) for check in CHECKS)


def render_outcome(outcome: Outcome, console: Console) -> None:
    """Print one check: its status, what was looked at, and what was found."""
    head = Text(f"{outcome.number} ")
    head.append(outcome.status, style=_STYLES[outcome.status])
    head.append(f"  {outcome.name:<{_WIDTH}}  ", style="bold")
    head.append(outcome.summary)
    console.print(head, soft_wrap=True)
    for finding in outcome.findings:
        console.print(Padding(_grid(finding), (0, 0, 0, 4), expand=False))


def _grid(finding: Finding) -> Table:
    """Return what, why and what to do, a row each, beside the words that introduce them."""
    grid = Table.grid(padding=(0, 1))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    style = _LEVELS[finding.level]
    faded = style if finding.level == "note" else ""
    grid.add_row(Text(f"{finding.level}:", style=style), Text(finding.what, style=faded))
    reasons = list(finding.why[:_REASONS])
    if len(finding.why) > _REASONS:
        reasons.append(f"and {len(finding.why) - _REASONS} more reasons")
    for reason in reasons:
        grid.add_row("", Text(reason, style="dim"))
    if finding.todo:
        grid.add_row(Text("->", style="bold", justify="right"), Text(finding.todo))
    return grid


def render_end(report: Report, console: Console) -> None:
    """Print what it came to: how many checks failed, and which comes first."""
    failed = [outcome for outcome in report.outcomes if outcome.status == "fail"]
    warned = [outcome for outcome in report.outcomes if outcome.status == "warn"]
    if failed:
        first = failed[0]
        count = f"{len(failed)} of {len(report.outcomes)} checks failed"
        text = f"{count}; begin with {first.number} ({first.name})."
    elif warned:
        text = f"Nothing failed; {len(warned)} with warnings."
    else:
        text = "Nothing is wrong that these checks can see."
    console.print(Text(f"\n{text}", style=_STYLES[report.status]))
