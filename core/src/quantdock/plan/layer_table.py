"""The plans of all layers that a checkpoint's headers show, with what loading would find."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from quantdock.checkpoint.model_facts import num_experts, num_layers
from quantdock.plan.expert_modules import Agreed, Completeness, agreements, find_modules
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
        experts: place of a layer -> what w13 and w2 of its module are, where it does not show that.
        faults: what the experts of one layer lack, or have twice.
    """

    own: Sequence[Decision]
    final: Sequence[Decision]
    experts: Mapping[int, Agreed]
    faults: tuple[StoredFault, ...]


def decide_layers(
    model: StoredModel, setting: Setting, config: Mapping[str, Any] = MappingProxyType({})
) -> Decided:
    """Return what becomes of the layers of ``model``, whose config.json is ``config``."""
    layers = model.layers
    own = [setting.decide(layer.asked) for layer in layers]
    modules = find_modules(layers, num_layers(config))
    final, experts = [*own], {}
    for agreed, parts in agreements(modules, layers, own):
        for decision, indices in zip(agreed, parts, strict=True):
            for index in indices:
                final[index] = replace(own[index], promised=decision.promised)
                if decision.error:
                    final[index] = decision
                else:
                    experts[index] = agreed
    check = Completeness(modules=modules, model=model, num_experts=num_experts(config))
    return Decided(own=own, final=final, experts=experts, faults=tuple(check.faults()))


def plan_layers(model: StoredModel, setting: Setting, decided: Decided) -> tuple[LayerPlan, ...]:
    """Return one plan for each layer of ``model``, in file order.

    Layers that store the same and are decided alike differ in their names only, so everything
    else is worked out once for them.
    """
    alike: dict[object, LayerPlan] = {}
    # The same by identity, which is faster; ``decided`` keeps what these ids are of.
    same: dict[tuple[int, int, int], LayerPlan] = {}
    plans = []
    for index, (layer, decision) in enumerate(zip(model.layers, decided.final, strict=True)):
        facts, layout = layer
        experts = decided.experts.get(index)
        ids = (id(layout), id(decision), id(experts))
        if (plan := same.get(ids)) is None:
            key = (facts.kind, id(layout), decision, experts)
            if (plan := alike.get(key)) is None:
                plan = alike[key] = _plan(layer, decision, experts, setting)
            same[ids] = plan
        plans.append(plan.renamed(facts.prefix))
    return tuple(plans)


def _plan(
    layer: StoredLayer, decision: Decision, experts: Agreed | None, setting: Setting
) -> LayerPlan:
    facts, layout = layer
    has_bias = "bias" in layout.stored
    stored_as = decision
    if setting.decodes and not decision.error:
        stored_as = setting.config.scheme_for(layer.asked)
    *_, n, k = (None, None, *_shape(layer, stored_as, setting))
    plan = setting.plan(
        facts,
        n,
        k,
        decision=decision,
        has_bias=has_bias,
        copies=_copies(layout),
        experts=experts,
    )
    config, decodes = setting.config, setting.decodes
    faults = () if decision.error else find_faults(layer, stored_as, config, decodes=decodes)
    found = (f"loading would stop: {fault.text}" for fault in faults)
    return replace(plan, bytes_stored=layout.num_bytes, warnings=(*plan.warnings, *found))


def _shape(layer: StoredLayer, decision: Decision, setting: Setting) -> tuple[int, ...]:
    """Return the shape of the layer's weight, as far as the headers show it."""
    facts, stack, scheme = layer.asked, layer.layout.stack, decision.scheme
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
