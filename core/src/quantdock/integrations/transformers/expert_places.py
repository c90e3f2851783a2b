"""Where a checkpoint has the routed experts of a model, whatever tools have called them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from quantdock.checkpoint.expert_names import PARTS, ROLES, W13
from quantdock.checkpoint.header import TensorEntry
from quantdock.errors import LoadError, few
from quantdock.integrations.transformers.names import NameMap
from quantdock.loading.expert_slices import halves, slice_experts
from quantdock.loading.sources import Sources
from quantdock.methods.experts import ExpertFacts
from quantdock.schemes import LayerFacts

_Weights = dict[int, dict[str, LayerFacts]]  # expert -> role -> what is stored


def locate_experts(name: str, module: Any, names: NameMap, sources: Sources) -> list[ExpertFacts]:
    """Return what the checkpoint stores of each expert of the module ``name``.

    Empty where it has none of them in a form that is read expert by expert.

    Raises:
        LoadError: it has some weights of some experts and lacks others; names them.
    """
    num_experts = next(len(p) for p in module.parameters(recurse=False) if p.dim() == 3)
    weights = _stored_apart(name, names, sources)
    weights = weights or _stored_stacked(name, module, num_experts, names, sources)
    if not weights:
        return []
    roles = {role for own in weights.values() for role in own}
    w13 = next((shards for shards in W13 if roles.issuperset(shards)), ())
    wanted = (*w13, "down")
    lost = [
        f"expert {expert}: {role}"
        for expert in range(num_experts)
        for role in wanted
        if role not in weights.get(expert, {})
    ]
    if lost or not w13:
        raise LoadError(
            f"{name}: the checkpoint lacks {len(lost)} weights of its experts.",
            why=[few(lost) if lost else f"it has {', '.join(sorted(roles))} only"],
            todo="Download the checkpoint again, or check its index.",
        )
    return [
        ExpertFacts(w13=tuple(weights[e][role] for role in w13), w2=(weights[e]["down"],))
        for e in range(num_experts)
    ]


def _stored_apart(name: str, names: NameMap, sources: Sources) -> _Weights:
    """Return the weights that files store one by one, whatever tools have called them."""
    prefixes = [
        source.rpartition(".")[0]
        for target, conversion in names.conversions.items()
        if target.rpartition(".")[0] == name
        for source, _ in conversion.sources
    ]
    prefixes += [source for layer, source in names.layers.items() if layer.startswith(f"{name}.")]
    found: _Weights = defaultdict(dict)
    for prefix in dict.fromkeys(prefixes):
        parent, _, weight = prefix.rpartition(".")
        number = parent.rpartition(".")[2]
        if weight in ROLES and number.isdecimal() and sources.under(prefix):
            facts = _facts(prefix, sources, f"{name}.{number}.{weight}")
            found[int(number)][ROLES[weight]] = facts
    return found


def _stored_stacked(
    name: str, module: Any, num_experts: int, names: NameMap, sources: Sources
) -> _Weights:
    """Return the weights that files store in one tensor for all experts, slice by slice."""
    prefix = names.layers.get(name, name)
    made: dict[tuple[int, str], dict[str, TensorEntry]] = defaultdict(dict)
    for part in slice_experts(sources.under, prefix, ROLES, num_experts):
        made[part.expert, part.weight][part.part] = part.entry
    is_turned_class = getattr(module, "is_transposed", False)
    is_apart = getattr(module, "is_concatenated", False) and not is_turned_class
    found: _Weights = defaultdict(dict)
    for (expert, weight), stored in made.items():
        parts = halves(stored) if is_apart and weight in PARTS else ()
        apart = dict(zip(PARTS.get(weight, ()), parts, strict=False)) or {weight: stored}
        # Classes that keep [E, K, N] store plain weights so; codes come as their tools have them.
        is_turned = is_turned_class and set(stored) == {"weight"}
        add = sources.add_transposed if is_turned else sources.add_part
        for own, entries in apart.items():
            for last, entry in entries.items():
                add(f"{prefix}.{expert}.{own}.{last}", entry)
            alias = (f"{name}.{expert}.{own}", f"{prefix}.{expert}.{weight}", f"{prefix}.{weight}")
            found[expert][ROLES[own]] = _facts(f"{prefix}.{expert}.{own}", sources, *alias)
    return found


def _facts(prefix: str, sources: Sources, *aliases: str) -> LayerFacts:
    others = tuple(dict.fromkeys(alias for alias in aliases if alias != prefix))
    return LayerFacts(prefix=prefix, kind="experts", aliases=others, stored=sources.stored(prefix))


def bias_names(order: str) -> tuple[tuple[str, str], ...]:
    """Return (parameter of our layer, its name in files) of the biases of all experts."""
    return (
        ("w13_bias", "up_proj_bias" if order == "up" else "gate_up_proj_bias"),
        ("w2_bias", "down_proj_bias"),
    )


def bias_sources(name: str, names: NameMap) -> Iterator[tuple[str, str]]:
    """Yield (parameter of our layer, checkpoint tensor) of the biases of ``name``."""
    for parameter, usual in dict.fromkeys((*bias_names("gate_up"), *bias_names("up"))):
        source = names.tensors.get(f"{name}.{usual}")
        if source is not None:
            yield parameter, source
