"""Check 4: what each layer is, and which of that surprises: lists, siblings, stored tensors."""

from __future__ import annotations

from collections.abc import Iterator

from quantdock.diagnosis.case import Case
from quantdock.diagnosis.naming import by_text, name_layers
from quantdock.diagnosis.report import Finding, Result, note
from quantdock.diagnosis.surprises import lonely_plain, odd_quantized, split_shards
from quantdock.errors import NothingQuantizedError, few
from quantdock.plan.grouping import collapse_all
from quantdock.plan.ignore_lists import sort_entries
from quantdock.plan.setting import refuse_nothing

# How a config ends a note on what is stored and not what the JSON says.
_CONTRADICTION = "the stored tensors decide"
_SEE = {"missing": 6, "shape": 5, "dtype": 5}  # the check that reports a fault of the headers


def examine(case: Case) -> Result:
    """Return how many layers are quantized, refused and plain, and what is odd about them."""
    plans = [*(layer.plan for layer in case.layers), *case.tied_head]
    names = by_text((plan.decision, plan.prefix) for plan in plans)
    told = ", ".join(
        f"{len(members):,} {'refused' if decision == 'error' else decision}"
        + ("" if decision == "quantized" else f" ({few(collapse_all(members), 3)})")
        for decision, members in sorted(names.items())
    )
    return Result(
        summary=f"{len(plans):,} layers: {told or 'none'}",
        findings=(
            *_refused(case),
            *_nothing(case),
            *_left_over(case),
            *_contradictions(case),
            *_unmatched(case),
            *_odd(case),
            *_unwanted(case),
        ),
        details={
            "decisions": {decision: len(members) for decision, members in names.items()},
            "layers": {plan.prefix: plan.scheme or "" for plan in plans},
        },
    )


def _refused(case: Case) -> Iterator[Finding]:
    """Yield layers that cannot be built; those with a fault of their headers are left to it."""
    seen = {fault.layer: fault.kind for fault in case.faults}
    refused = [layer for layer in case.layers if layer.decision.error]
    own = [layer for layer in refused if layer.prefix not in seen]
    todo = {layer.decision.because: layer.decision.todo for layer in own}
    for text, names in by_text((x.decision.because, x.prefix) for x in own).items():
        yield Finding(
            level="fail",
            what=f"{name_layers(names)} cannot be built.",
            why=(text,),
            todo=todo[text],
            names=tuple(names),
        )
    others = by_text(
        (f"refused for what is stored: see check {_SEE[seen[x.prefix]]}", x.prefix)
        for x in refused
        if seen.get(x.prefix) in _SEE
    )
    for text, names in others.items():
        yield note(f"{name_layers(names)}: {text}", names=names)


def _nothing(case: Case) -> Iterator[Finding]:
    decided = [(layer.plan.decision, layer.plan.because) for layer in case.layers]
    try:
        refuse_nothing(case.choice, decided, case.options.policy)
    except NothingQuantizedError as error:
        reasons = by_text((layer.plan.because, layer.prefix) for layer in case.layers)
        why = [f"{name_layers(names)}: {text}" for text, names in list(reasons.items())[:5]]
        yield Finding(level="fail", what=error.what, why=tuple(why), todo=error.todo)


def _left_over(case: Case) -> Iterator[Finding]:
    alike: dict[tuple[str, str], list[str]] = {}
    for fault in case.faults_of("left over"):
        why = fault.why or "loading stops at a scale, zero point or code that no layer reads"
        alike.setdefault((fault.text, why), []).append(fault.layer)
    for (text, why), names in alike.items():
        yield Finding(
            level="fail",
            what=f"{name_layers(names)}: {text}.",
            why=(why,),
            todo="Check the ignore list, and that quant_method is what wrote the file.",
            names=tuple(names),
        )


def _contradictions(case: Case) -> Iterator[Finding]:
    for text in case.setting.config.notes():
        if text.endswith(_CONTRADICTION):
            yield Finding(
                level="warn",
                what=f"The JSON and the tensors differ: {text}.",
                todo="Correct the JSON, so that other programs load the same.",
            )
        else:
            yield note(text)


def _unmatched(case: Case) -> Iterator[Finding]:
    left = case.setting.config.unmatched()
    found = sort_entries(left, left, case.checkpoint.tensors)
    for entry in found.unmatched:
        yield Finding(
            level="warn",
            what=f"{entry} matches no layer.",
            why=("the layers it was meant for are treated like all others",),
            todo="Write the names as the checkpoint's tensors have them.",
            names=(entry,),
        )


def _odd(case: Case) -> Iterator[Finding]:
    """Yield what surprises; layers that an entry of a list left plain only as a note."""
    plans = [layer.plan for layer in case.layers]
    listed = {plan.prefix for plan in plans if plan.source in case.listed}
    for text, names in lonely_plain(plans):
        meant = listed.issuperset(names)
        todo = "" if meant else "Fine if it is meant; else quantize these like the rest."
        yield Finding(
            level="note" if meant else "warn",
            what=f"{name_layers(names)}: {text}.",
            todo=todo,
            names=tuple(names),
        )
    remedies = (
        (split_shards(plans), "Runtimes that fuse these layers need them alike."),
        (odd_quantized(plans), "If outputs are poor, quantize again and leave these out."),
    )
    for surprises, todo in remedies:
        for text, names in surprises:
            yield Finding(
                level="warn", what=f"{name_layers(names)}: {text}.", todo=todo, names=tuple(names)
            )


def _unwanted(case: Case) -> Iterator[Finding]:
    if case.options.layers is not None and not case.wanted:
        yield Finding(
            level="warn",
            what=f"--layers {case.options.layers} matches no layer.",
            why=("checks 6 and 8 have nothing to read",),
            todo="Write names as the checkpoint's tensors have them, such as 'layers.3.mlp'.",
        )
