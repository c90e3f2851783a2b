"""A head that is the embedding: a layer of the model without a tensor of its own in the files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from quantdock.checkpoint.model_facts import is_tied, may_have_head
from quantdock.plan.plan import LayerPlan
from quantdock.plan.setting import Setting
from quantdock.plan.stored_layers import StoredModel
from quantdock.schemes import Decision, LayerFacts

HEAD = "lm_head"
_TIED = Decision.unquantized(
    "tied to the embedding, whose weight it is", "config.json: tie_word_embeddings"
)
_UNSAID = Decision.unquantized(
    "the embedding's weight is used: none is stored, and config.json does not say whether it is "
    "tied",
    "the file's headers",
)


def tied_decision(config: Mapping[str, Any]) -> Decision:
    """Return what becomes of a head that has the embedding's weight."""
    return _TIED if is_tied(config) else _UNSAID


def plan_tied_head(
    model: StoredModel, setting: Setting, config: Mapping[str, Any]
) -> tuple[LayerPlan, ...]:
    """Return the plan of the head that loading ties to the embedding; empty: it ties none."""
    kinds = {layer.facts.kind: layer for layer in reversed(model.layers)}
    if "head" in kinds or "embedding" not in kinds or not may_have_head(config):
        return ()
    if is_tied(config) is False:
        return ()
    facts = LayerFacts(prefix=HEAD, kind="head", class_names=("Linear",))
    setting.decide(facts)  # lists name it, and have not missed then
    layout = kinds["embedding"].layout
    plan = setting.plan(facts, layout.n, layout.k, decision=tied_decision(config))
    return (replace(plan, bytes_stored=0, bytes_memory=0),)
