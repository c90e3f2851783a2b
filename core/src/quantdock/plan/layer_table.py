"""The plans of all layers that a checkpoint's headers show, with what loading would find."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import prod

from quantdock.plan.plan import LayerPlan
from quantdock.plan.setting import Setting
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
    found = () if setting.decodes else _mismatches(facts, layout, decision, setting)
    return replace(plan, bytes_stored=layout.num_bytes, warnings=(*plan.warnings, *found))


def _shape(
    facts: LayerFacts, layout: Layout, decision: Decision, setting: Setting
) -> tuple[int, ...]:
    """Return the shape of the layer's weight, as far as the headers show it."""
    if decision.scheme is None:
        return layout.weight_shape if len(layout.weight_shape) > 1 else ()
    return setting.config.weight_shape(decision.scheme, facts)


def _mismatches(
    facts: LayerFacts, layout: Layout, decision: Decision, setting: Setting
) -> Iterator[str]:
    """Yield what loading would stop at: tensors that are missing, left over, or do not fit."""
    if decision.error:
        return
    scheme, codes = decision.scheme, layout.codes
    if scheme is None:
        if codes:
            yield f"loading would stop: {', '.join(codes)} stored, and the layer is not quantized"
        return
    shape = setting.config.weight_shape(scheme, facts)
    if not shape:
        yield "loading would stop: weight is missing"
    if len(shape) != 2:
        return
    slots = setting.config.slots(scheme, *shape, facts)
    spellings = {spelling for slot in slots for spelling in slot.spellings}
    for slot in slots:
        name = slot.stored_as(layout.stored)
        if name is None:
            if slot.default is None:
                yield f"loading would stop: {' or '.join(slot.spellings)} is missing"
            continue
        tensor = layout.stored[name]
        if tensor.dtype not in slot.dtypes:
            yield f"loading would stop: {name} is {tensor.dtype}, {slot.dtypes[0]} expected"
        elif prod(tensor.shape) not in {prod(shape) for shape in slot.shapes}:
            yield f"loading would stop: {name} is {tensor.shape}, {slot.shape} expected"
    if left := [part for part in codes if part not in spellings]:
        yield f"loading would stop: nothing takes {', '.join(left)}"
