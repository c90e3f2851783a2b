"""Reading reports of ``doctor`` in tests."""

from __future__ import annotations

from quantdock.diagnosis import Report


def statuses(report: Report) -> dict[str, str]:
    """Return the status of each check."""
    return {outcome.name: outcome.status for outcome in report.outcomes}


def told(report: Report, name: str) -> str:
    """Return all that one check says, notes left out."""
    return "\n".join(
        line
        for finding in report[name].findings
        if finding.level != "note"
        for line in (finding.what, *finding.why, finding.todo)
    )


def noted(report: Report, name: str) -> str:
    """Return the notes of one check."""
    return "\n".join(
        line
        for finding in report[name].findings
        if finding.level == "note"
        for line in (finding.what, *finding.why)
    )
