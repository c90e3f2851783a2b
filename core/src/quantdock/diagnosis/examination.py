"""``doctor``: run the eight checks on one checkpoint, whatever any of them meets."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from pkgutil import resolve_name

from quantdock.arguments import RANKS, checked
from quantdock.diagnosis.case import Case, Options, Tracker
from quantdock.diagnosis.checks import CHECKS, OWNERS, Check, number_of
from quantdock.diagnosis.report import Finding, Outcome, Report, Result
from quantdock.errors import QuantDockError
from quantdock.kernel import Policy
from quantdock.platform import Platform
from quantdock.registry import plugins
from quantdock.registry.blame import blame

_log = logging.getLogger(__name__)


@checked(tp=RANKS)
def doctor(
    path: str | Path,
    quantization: str | None = None,
    platform: str | Platform | None = None,
    *,
    dtype: str = "auto",
    kv_cache: str = "auto",
    exact: bool = False,
    prefer: str | None = None,
    require: str | None = None,
    ignore: Sequence[str] = (),
    choices: Mapping[str, str] | None = None,
    trust_remote_code: bool = False,
    tp: int = 1,
    base: str | Path | None = None,
    layers: str | None = None,
    quick: bool = False,
    track: Tracker = iter,
    on_outcome: Callable[[Outcome], None] | None = None,
) -> Report:
    """Return what is wrong with the checkpoint folder ``path``, by eight checks.

    A check that finds a fault, or is stopped by one, reports it; nothing raises but arguments of
    a wrong type. The first options are those of ``load``.

    Args:
        platform: as for ``explain``; one that is not this machine is examined without running.
        tp: number of ranks that the layers are to be divided among.
        base: folder of the 16-bit checkpoint that this one was made from.
        layers: pattern of the layers whose values and numbers are looked at.
        quick: read headers only; values and numbers are not looked at.
        track: wraps the tensors and modules while they are read, to show progress.
        on_outcome: called with each outcome when its check has ended.
    """
    options = Options(
        quantization=quantization,
        platform=platform,
        dtype=dtype,
        kv_cache=kv_cache,
        policy=Policy(exact=exact, prefer=prefer, require=require),
        ignore=ignore,
        choices=choices,
        trust_remote_code=trust_remote_code,
        tp=tp,
        base=base,
        layers=layers,
        quick=quick,
    )
    return _examine(Case(path, options, track), on_outcome or (lambda outcome: None))


def _examine(case: Case, on_outcome: Callable[[Outcome], None]) -> Report:
    """Return the report on ``case`` after running every check on it."""
    for check in CHECKS:
        outcome = _outcome(check, _run(check, case))
        case.outcomes.append(outcome)
        on_outcome(outcome)
    return _report(case)


def _run(check: Check, case: Case) -> Result:
    """Return the result of one check; what it raises is what it found."""
    if reason := _why_not(check, case):
        return Result.skip(reason)
    try:
        result: Result = resolve_name(check.target)(case)
    except QuantDockError as error:
        return Result(summary=error.what, findings=(Finding.of(error),))
    except Exception as error:
        return _broken(check, error)
    return result


def _why_not(check: Check, case: Case) -> str:
    """Return why ``check`` cannot run; empty where it can."""
    for fact in check.needs:
        if error := case.fault(fact):
            owner = next((owner for known, owner in OWNERS if case.fault(known)), check.name)
            return f"{error.what} (check {number_of(owner)})"
    return ""


def _broken(check: Check, error: Exception) -> Result:
    """Return the result of a check that met what it did not expect."""
    _log.debug("check %s", check.name, exc_info=error)
    text = " ".join(str(error).split())
    where, fault = blame(error, plugins())
    finding = Finding(
        level="fail",
        what=f"The check {check.name} was stopped by {type(error).__name__}: {text}",
        why=(where,) if where else (),
        todo=f"{fault}; report it.",
    )
    return Result(summary=f"stopped by {type(error).__name__}", findings=(finding,))


def _outcome(check: Check, result: Result) -> Outcome:
    return Outcome(
        number=number_of(check.name),
        name=check.name,
        title=check.title,
        status=result.status,
        summary=result.summary,
        findings=result.findings,
        details=result.details,
    )


def _report(case: Case) -> Report:
    choice = case.get("choice")
    platform = choice.platform if choice else case.get("platform")
    return Report(
        checkpoint=str(case.path),
        method=choice.name if choice else "",
        platform=str(platform or ""),
        dtype=(case.get("dtype") or "") if choice else "",
        outcomes=tuple(case.outcomes),
    )
