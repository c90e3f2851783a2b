"""What the experts of one layer are: each is asked about by itself, and all must agree."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from quantdock.errors import few
from quantdock.methods.experts import ExpertFacts
from quantdock.schemes import Decision, LayerFacts
from quantdock.schemes.decision import ALIKE

_STORED = "what the checkpoint stores of each expert"


def decide_experts(
    experts: Sequence[ExpertFacts], decide: Callable[[LayerFacts], Decision]
) -> tuple[Decision, Decision]:
    """Return what w13 and w2 become: both quantized, both plain, or both the same error."""
    w13 = _agreed([facts for expert in experts for facts in expert.w13], decide)
    w2 = _agreed([facts for expert in experts for facts in expert.w2], decide)
    wrong = next((decision for decision in (w13, w2) if decision.error), None)
    if wrong is None and (w13.scheme is None) is not (w2.scheme is None):
        because = f"w13 is {w13.kind} ({w13.because}), and w2 {w2.kind} ({w2.because})"
        wrong = Decision.refused(because, _STORED, ALIKE)
    return (wrong, wrong) if wrong else (w13, w2)


def _agreed(each: Sequence[LayerFacts], decide: Callable[[LayerFacts], Decision]) -> Decision:
    found: dict[object, tuple[Decision, str]] = {}
    wrong: dict[str, Decision] = {}
    for facts in each:
        decision = decide(facts)
        if decision.error:
            wrong.setdefault(decision.because, decision)
        found.setdefault(decision.scheme, (decision, facts.prefix))
    if wrong:
        return replace(next(iter(wrong.values())), because=few([*wrong], separator="; "))
    if len(found) == 1:
        return next(iter(found.values()))[0]
    told = "; ".join(f"{where} is {d.scheme or 'plain'}" for d, where in found.values())
    because = f"the experts of one layer are stored differently: {told}"
    return Decision.refused(because, _STORED, ALIKE)
