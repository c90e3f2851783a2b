"""What an examination found: one outcome a check, each with its findings. Nothing imports torch.

>>> finding = Finding(level="warn", what="2 layers are plain", todo="Look at the ignore list.")
>>> Result(summary="30 layers", findings=(finding,)).status
'warn'
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from quantdock.errors import QuantDockError

Level = Literal["fail", "warn", "note"]
Status = Literal["pass", "skip", "warn", "fail"]
SCHEMA = 1  # of the JSON; grows when a field changes its meaning


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that was found: what, why, what to do. A note asks for nothing.

    ``names`` are the layers or tensors it is about.
    """

    level: Level
    what: str
    why: tuple[str, ...] = ()
    todo: str = ""
    names: tuple[str, ...] = ()

    @classmethod
    def of(cls, error: QuantDockError) -> Finding:
        """Return ``error`` as a finding."""
        return cls(level="fail", what=error.what, why=error.why, todo=error.todo)


def note(what: str, *why: str, names: Sequence[str] = ()) -> Finding:
    """Return a finding that asks for nothing."""
    return Finding(level="note", what=what, why=why, names=tuple(names))


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What one check came to; ``summary`` says what was looked at, or why nothing was.

    ``details`` are figures for the JSON report.
    """

    summary: str
    findings: tuple[Finding, ...] = ()
    details: Mapping[str, Any] = field(default_factory=dict)
    is_skipped: bool = False

    @classmethod
    def skip(cls, reason: str) -> Result:
        """Return the result of a check that could not run, or was not asked for."""
        return cls(summary=reason, is_skipped=True)

    @property
    def status(self) -> Status:
        """Return skip, or the worst level among the findings; notes pass."""
        if self.is_skipped:
            return "skip"
        levels = {finding.level for finding in self.findings}
        return "fail" if "fail" in levels else "warn" if "warn" in levels else "pass"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The result of the check called ``name``, as the report keeps it."""

    number: int
    name: str
    title: str
    status: Status
    summary: str
    findings: tuple[Finding, ...] = ()
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """All outcomes for one checkpoint; ``report["scales"]`` is the one of that name.

    ``method``, ``platform`` and ``dtype`` are empty where that could not be found out.
    """

    checkpoint: str
    method: str
    platform: str
    dtype: str
    outcomes: tuple[Outcome, ...]

    def __getitem__(self, name: str) -> Outcome:
        return next(outcome for outcome in self.outcomes if outcome.name == name)

    @property
    def status(self) -> Status:
        """Return fail, warn or pass: the worst of the outcomes."""
        found = {outcome.status for outcome in self.outcomes}
        return "fail" if "fail" in found else "warn" if "warn" in found else "pass"

    @property
    def exit_code(self) -> int:
        """Return 1 if any check failed, else 0."""
        return int(self.status == "fail")

    def to_json(self) -> str:
        """Return the report as JSON: the fields of Report, Outcome and Finding by their names.

        Numbers that are infinite or NaN are the strings "inf" and "nan".
        """
        content = {"schema": SCHEMA, "status": self.status, **asdict(self)}
        return json.dumps(_writable(content), indent=2)


def _writable(value: Any) -> Any:
    """Return ``value`` with infinity and NaN as words, because JSON has no such numbers."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {key: _writable(item) for key, item in value.items()}
    return [_writable(item) for item in value] if isinstance(value, (list, tuple)) else value
