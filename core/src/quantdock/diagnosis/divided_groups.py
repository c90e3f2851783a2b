"""Act-order divided among ranks: a part of K has groups of unequal size, which few kernels take.

Headers do not show the order of columns, so a quick look takes every one for a permutation.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from quantdock.diagnosis.case import Case, Layer
from quantdock.diagnosis.naming import name_layers
from quantdock.diagnosis.report import Finding, note
from quantdock.errors import QuantDockError
from quantdock.plan import LayerPlan

Parts = Sequence[range]  # the columns of each rank


def kernels_of_parts(case: Case, parts: Mapping[str, Parts]) -> Iterator[Finding]:
    """Yield where the parts of layers run in another kernel than the whole, or in none.

    Args:
        parts: of the layers whose input features are divided, by name.
    """
    alike: dict[object, tuple[Layer, LayerPlan, list[str]]] = {}
    for layer in case.layers:
        if layer.prefix in parts and not layer.plan.lacks_kernel and _is_ordered(layer):
            own = parts[layer.prefix]
            plan = _plan_part(case, layer, len(own[0]))
            if plan.kernel != layer.plan.kernel and _are_unequal(case, layer, own):
                key = (layer.plan.kernel, plan.kernel, plan.kernel_note, plan.scheme, plan.rejected)
                alike.setdefault(key, (layer, plan, []))[2].append(layer.prefix)
    for layer, plan, names in alike.values():
        yield _told(case, layer, plan, names)


def _is_ordered(layer: Layer) -> bool:
    scheme = layer.decision.scheme
    return scheme is not None and scheme.weight.act_order


def _plan_part(case: Case, layer: Layer, k: int) -> LayerPlan:
    whole = layer.plan
    return case.setting.plan(layer.facts, whole.n, k, decision=layer.decision, equal_groups=False)


def _told(case: Case, layer: Layer, plan: LayerPlan, names: Sequence[str]) -> Finding:
    """Return what becomes of layers like ``layer`` once they are divided."""
    who = f"{name_layers(names)}: among {case.options.tp} ranks"
    reasons = {rejection.kernel: "; ".join(rejection.reasons) for rejection in plan.rejected}
    if not plan.lacks_kernel:
        whole = layer.plan.kernel or ""
        return note(f"{who}, {plan.kernel} runs them", f"{whole}: {reasons[whole]}", names=names)
    return Finding(
        level="fail",
        what=f"{who}, no kernel runs {plan.scheme} on {case.choice.platform}.",
        why=tuple(f"{kernel}: {text}" if kernel else text for kernel, text in reasons.items()),
        todo=f"{plan.kernel_note} A checkpoint without act-order (desc_act) can be divided.",
        names=tuple(names),
    )


def _are_unequal(case: Case, layer: Layer, parts: Parts) -> bool:
    """Return whether the parts have groups of unequal size; True where no index is read."""
    if case.options.quick:
        return True
    from quantdock.diagnosis.stored_weight import read_layer
    from quantdock.kernels.column_order import have_equal_groups
    from quantdock.loading.sources import Sources
    from quantdock.numerics import cut_columns

    try:
        weight = read_layer(case, layer, Sources(case.checkpoint.tensors))
    except QuantDockError:
        return False  # what cannot be read is told with the scales
    cuts = (cut_columns(weight, part.start, part.stop) for part in parts)
    return any(have_equal_groups(cut) is False for cut in cuts)
