"""The plans of all layers that a checkpoint's headers show, with what loading would find."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from quantdock.checkpoint.model_facts import num_experts, num_layers
from quantdock.plan.expert_modules import Completeness, find_modules, refusals
from quantdock.plan.plan import LayerPlan
from quantdock.plan.setting import Setting
from quantdock.plan.stored_faults import StoredFault, find_faults
from quantdock.plan.stored_layers import Layout, StoredLayer, StoredModel
from quantdock.schemes import Decision


@dataclass(frozen=True, slots=True, kw_only=True)
class Decided:
    """What is decided of each layer of a model, in file order.

    Attributes:
        own: of each by itself. final: after the experts of one layer were looked at together.
        faults: what the experts of one layer lack, or have twice.
    """

    own: Sequence[Decision]
    final: Sequence[Decision]
    faults: tuple[StoredFault, ...]


def decide_layers(
    model: StoredModel, setting: Setting, config: Mapping[str, Any] = MappingProxyType({})
) -> Decided:
    """Return what becomes of the layers of ``model``, whose config.json is ``config``."""
    layers = model.layers
    own = [setting.decide(layer.asked) for layer in layers]
    modules = find_modules(layers, num_layers(config))
    final = [*own]
    for decision, indices in refusals(modules, layers, own):
        for index in indices:
            final[index] = decision
    check = Completeness(modules=modules, model=model, num_experts=num_experts(config))
    return Decided(own=own, final=final, faults=tuple(check.faults()))


def plan_layers(
    model: StoredModel, setting: Setting, decided: Sequence[Decision]
) -> tuple[LayerPlan, ...]:
    """Return one plan for each layer of ``model``, in file order.

    Layers that store the same and are decided alike differ in their names only, so everything
    else is worked out once for them.
    """
    alike: dict[object, LayerPlan] = {}
    # The same by identity, which is faster; the decision is kept so that its id stays its own.
    same: dict[tuple[int, int], tuple[LayerPlan, Decision]] = {}
    plans = []
    for layer, decision in zip(model.layers, decided, strict=True):
        facts, layout = layer
        known = same.get((id(layout), id(decision)))
        if known is None:
            key = (facts.kind, id(layout), decision)
            if (plan := alike.get(key)) is None:
                plan = alike[key] = _plan(layer, decision, setting)
            known = same[id(layout), id(decision)] = (plan, decision)
        plans.append(known[0].renamed(facts.prefix))
    return tuple(plans)


def _plan(layer: StoredLayer, decision: Decision, setting: Setting) -> LayerPlan:
    facts, layout = layer
    has_bias = "bias" in layout.stored
    *_, n, k = (None, None, *_shape(layer, decision, setting))
    plan = setting.plan(facts, n, k, decision=decision, has_bias=has_bias, copies=_copies(layout))
    told = setting.decodes or decision.error
    faults = () if told else find_faults(layer, decision, setting.config)
    found = (f"loading would stop: {fault.text}" for fault in faults)
    return replace(plan, bytes_stored=layout.num_bytes, warnings=(*plan.warnings, *found))


def _shape(layer: StoredLayer, decision: Decision, setting: Setting) -> tuple[int, ...]:
    """Return the shape of the layer's weight, as far as the headers show it."""
    facts, stack = layer.asked, layer.layout.stack
    scheme = decision.scheme
    if setting.decodes and not decision.error:
        scheme = setting.config.scheme_for(facts).scheme  # as it is stored
    if scheme is None:
        weight = (facts.stored or {}).get("weight")
        shape = weight.shape if weight is not None and len(weight.shape) > 1 else ()
    else:
        shape = setting.config.weight_shape(scheme, facts)
    if stack is None or len(shape) != 2:
        return shape
    return stack.halves * shape[0], shape[1]


def _copies(layout: Layout) -> int:
    """Return how many matrices the layer has: stacked experts have one each."""
    return layout.copies if layout.stack is None else layout.stack.number
