"""What the experts of one layer are: each is asked about by itself, and all must agree.

Loading and plans ask here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from quantdock.errors import few
from quantdock.schemes import Decision, LayerFacts
from quantdock.schemes.decision import ALIKE

if TYPE_CHECKING:
    from quantdock.methods.experts import ExpertFacts

Decided = Iterable[tuple[str, Decision]]  # weights by name


def decide_experts(
    experts: Sequence[ExpertFacts], decide: Callable[[LayerFacts], Decision]
) -> tuple[Decision, Decision]:
    """Return what w13 and w2 become: both quantized, both plain, or both the same error."""
    return agree(
        ((facts.prefix, decide(facts)) for expert in experts for facts in expert.w13),
        ((facts.prefix, decide(facts)) for expert in experts for facts in expert.w2),
    )


def agree(w13: Decided, w2: Decided) -> tuple[Decision, Decision]:
    """Return what w13 and w2 become, of what each weight of them is by itself."""
    both = of_w13, of_w2 = _agreed(w13), _agreed(w2)
    wrong = next((decision for decision in both if decision.error), None)
    if wrong is None and (of_w13.scheme is None) is not (of_w2.scheme is None):
        because = f"w13 is {of_w13.kind} ({of_w13.because}), and w2 {of_w2.kind} ({of_w2.because})"
        wrong = Decision.refused(because, _sources(both), ALIKE)
    return (wrong, wrong) if wrong else both


def _agreed(each: Decided) -> Decision:
    found: dict[object, tuple[Decision, str]] = {}
    wrong: dict[str, tuple[Decision, list[str]]] = {}  # by what is wrong; of which weights
    promised = False
    for name, decision in each:
        promised = promised or decision.promised
        if decision.error:
            wrong.setdefault(decision.because, (decision, []))[1].append(name)
        found.setdefault(decision.scheme, (decision, name))
    if wrong:
        first, _ = next(iter(wrong.values()))
        what = [_naming(because, prefixes) for because, (_, prefixes) in wrong.items()]
        return replace(first, because=few(what, separator="; "))
    if len(found) == 1:
        decision = next(iter(found.values()))[0]
        return replace(decision, promised=True) if promised else decision
    told = "; ".join(f"{where} is {d.scheme or 'plain'}" for d, where in found.values())
    because = f"the experts of one layer differ: {told}"
    return Decision.refused(because, _sources([d for d, _ in found.values()]), ALIKE)


def _sources(decisions: Iterable[Decision]) -> str:
    """Return where decisions that do not go together are written."""
    return " and ".join(dict.fromkeys(decision.source for decision in decisions))


def _naming(because: str, prefixes: Sequence[str]) -> str:
    """Return ``because`` with the weights it is said of, unless it names the first itself."""
    return because if prefixes[0] in because else f"{few(prefixes, 2)}: {because}"
