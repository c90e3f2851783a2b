"""The plans of all layers that a checkpoint's headers show, with what loading would find."""

from __future__ import annotations

from dataclasses import replace

from quantdock.plan.plan import LayerPlan
from quantdock.plan.setting import Setting
from quantdock.plan.stored_faults import find_faults
from quantdock.plan.stored_layers import Layout, StoredLayer, StoredModel
from quantdock.schemes import Decision, LayerFacts


def plan_layers(model: StoredModel, setting: Setting) -> tuple[LayerPlan, ...]:
    """Return one plan for each layer of ``model``, in file order.

    Layers that store the same and are decided alike differ in their names only, so everything
    else is worked out once for them.
    """
    alike: dict[object, LayerPlan] = {}
    # The same by identity, which is faster; the decision is kept so that its id stays its own.
    same: dict[tuple[int, int], tuple[LayerPlan, Decision]] = {}
    plans = []
    for layer in model.layers:
        facts, layout = layer
        decision = setting.decide(facts)
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
    *_, n, k = (None, None, *_shape(facts, layout, decision, setting))
    plan = setting.plan(facts, n, k, decision=decision, has_bias=has_bias)
    told = setting.decodes or decision.error
    faults = () if told else find_faults(layer, decision, setting.config)
    found = (f"loading would stop: {fault.text}" for fault in faults)
    return replace(plan, bytes_stored=layout.num_bytes, warnings=(*plan.warnings, *found))


def _shape(
    facts: LayerFacts, layout: Layout, decision: Decision, setting: Setting
) -> tuple[int, ...]:
    """Return the shape of the layer's weight, as far as the headers show it."""
    if decision.scheme is None:
        return layout.weight_shape if len(layout.weight_shape) > 1 else ()
    return setting.config.weight_shape(decision.scheme, facts)
