"""Check 6: every scale that is needed is there, and no value that is read is absurd.

Tensors are read one after another; memory holds one layer.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from quantdock.checkpoint.lacking import find_lacking
from quantdock.diagnosis.case import Case
from quantdock.diagnosis.naming import by_text, name_layers
from quantdock.diagnosis.report import Finding, Result

if TYPE_CHECKING:
    from quantdock.diagnosis.tensor_values import ValueFault
    from quantdock.diagnosis.value_survey import Survey

_MOST_ALIKE = 3  # faults of one kind that are told one by one
_NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?")
_PLURALS = {"has": "have", "is": "are", "holds": "hold", "reaches": "reach"}


def examine(case: Case) -> Result:
    """Return what is missing by the headers, and, unless quick, what the values show."""
    missing = (*_missing(case), *_lacking(case), *_promised(case))
    if case.options.quick:
        if missing:
            return Result(summary="values not read (quick)", findings=missing)
        return Result.skip("values not read (quick)")
    from quantdock.diagnosis.value_survey import survey
    from quantdock.diagnosis.zero_shift import find_shift

    found = survey(case)
    shift = find_shift(found.steps, case.setting.config, is_measured=False)
    more = f"; {found.num_unread:,} stacked experts not read" if found.num_unread else ""
    return Result(
        summary=f"{found.num_layers:,} quantized layers and {found.num_plain:,} plain tensors "
        f"read{more}",
        findings=(*missing, *_values(found), *([shift] if shift else [])),
        details={
            "num_layers": found.num_layers,
            "num_plain": found.num_plain,
            "num_unread": found.num_unread,
        },
    )


def _missing(case: Case) -> Iterator[Finding]:
    todo = {layer.prefix: layer.decision.todo for layer in case.layers}
    alike: dict[tuple[str, str], list[str]] = {}
    for fault in case.faults_of("missing"):
        why = fault.why or "codes mean nothing without it"
        alike.setdefault((fault.text, why), []).append(fault.layer)
    for (text, why), names in alike.items():
        yield Finding(
            level="fail",
            what=f"{name_layers(names)}: {text}.",
            why=(why,),
            todo=todo.get(names[0]) or "Download the missing file, or quantize again.",
            names=tuple(names),
        )


def _lacking(case: Case) -> Iterator[Finding]:
    """Yield tensors that may be left out, and that most layers of a kind have."""
    told = {fault.tensor for fault in case.faults_of("missing")}
    for lacking in find_lacking(case.checkpoint.tensors):
        names = [name for name in lacking.layers if f"{name}.{lacking.part}" not in told]
        if names:
            yield Finding(
                level="warn",
                what=f"{name_layers(names)}: {lacking}.",
                why=("a layer that lost it is read as if it had never had it",),
                todo="Download the file again; --base with the 16-bit original shows the layer.",
                names=tuple(names),
            )


def _promised(case: Case) -> Iterator[Finding]:
    """Yield scales of keys and values that the checkpoint promises and does not store."""
    warnings = ((text, plan.prefix) for plan in case.attention for text in plan.warnings)
    for text, names in by_text(warnings).items():
        yield Finding(
            level="warn",
            what=f"{name_layers(names)}: {text}.",
            todo="Calibrate the cache, or keep it in the model's dtype (--kv-cache none).",
            names=tuple(names),
        )


def _values(found: Survey) -> Iterator[Finding]:
    """Yield one finding for each fault, however many tensors have it.

    Faults that differ in their numbers only are one from the fourth on.
    """
    grouped: dict[ValueFault, list[str]] = {}
    for name, fault in found.faults:
        grouped.setdefault(fault, []).append(name)
    alike: dict[object, list[ValueFault]] = {}
    for fault in grouped:
        kind = (fault.level, _NUMBER.sub("#", fault.text), fault.todo)
        alike.setdefault(kind, []).append(fault)
    for faults in alike.values():
        told = faults if len(faults) <= _MOST_ALIKE else faults[:1]
        for fault in told:
            is_first = len(faults) > len(told)
            names = [n for f in faults for n in grouped[f]] if is_first else grouped[fault]
            text = _of_many(fault.text) if len(names) > 1 else fault.text
            rest = f"; so it is said of {names[0]}, and of the others in other numbers"
            yield Finding(
                level=fault.level,
                what=f"{name_layers(names, 'tensor')} {text}{rest if is_first else ''}.",
                todo=fault.todo,
                names=tuple(names),
            )


def _of_many(text: str) -> str:
    """Return what is said of one tensor as it is said of several.

    >>> _of_many("has all 4 scales of 1.0, the default")
    'have all 4 scales of 1.0, the default'
    """
    verb, _, rest = text.partition(" ")
    return f"{_PLURALS.get(verb, verb)} {rest}"
