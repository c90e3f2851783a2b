"""Experts that a file stores in one tensor, taken apart: what is decoded at a time, and written."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quantdock.checkpoint import TensorEntry
from quantdock.checkpoint.expert_names import PARTS
from quantdock.loading.expert_slices import find_stacked, halves
from quantdock.loading.sources import Sources
from quantdock.schemes import LayerFacts

# Models whose classes keep the plain weights of experts as [experts, K, N]; codes are [.., N, K].
_TURNED = frozenset({"gpt_oss", "openai_privacy_filter", "aria", "aria_text"})
Pieces = tuple[LayerFacts, ...]  # of one expert, its rows in order


def take_apart(
    sources: Sources, facts: LayerFacts, number: int
) -> tuple[dict[str, TensorEntry], tuple[Pieces, ...]]:
    """Return the tensors of all experts by part, and the pieces of each, which ``sources`` reads.

    Gate and up that lie one after the other are two pieces, as scales by blocks have their rows.
    """
    module, _, weight = facts.prefix.rpartition(".")
    whole = {s.part: s for s in find_stacked(sources.under, module, [weight]) if s.part != "bias"}
    slices = {part: found for part, s in whole.items() if (found := s.slices(number))}
    pieces = []
    for expert in range(number):
        own = {part: entries[expert] for part, entries in slices.items()}
        parts = halves(own) if weight in PARTS else ()
        named: Mapping[str, Mapping[str, TensorEntry]] = dict(
            zip(PARTS.get(weight, ()), parts, strict=False)
        )
        pieces.append(
            tuple(
                _piece(sources, f"{module}.{expert}.{name}", entries, facts)
                for name, entries in (named or {weight: own}).items()
            )
        )
    return {part: s.entry for part, s in whole.items()}, tuple(pieces)


def _piece(
    sources: Sources, prefix: str, entries: Mapping[str, TensorEntry], facts: LayerFacts
) -> LayerFacts:
    for part, entry in entries.items():
        sources.add_part(f"{prefix}.{part}", entry)
    aliases = (facts.prefix, *facts.aliases)
    return LayerFacts(prefix=prefix, kind="experts", aliases=aliases, stored=sources.stored(prefix))


def keeps_experts_turned(config: Mapping[str, Any]) -> bool:
    """Return whether plain experts of the model are stored input features first.

    Args:
        config: the content of config.json.
    """
    parts = (config, config.get("text_config"))
    return any(isinstance(p, Mapping) and p.get("model_type") in _TURNED for p in parts)
