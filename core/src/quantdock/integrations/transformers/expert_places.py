"""Where a checkpoint has the routed experts of a model, whatever tools have called them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from quantdock.checkpoint.expert_names import PARTS, ROLES, W13
from quantdock.checkpoint.header import TensorEntry
from quantdock.errors import LoadError, few
from quantdock.integrations.transformers.names import NameMap
from quantdock.layers.fused_moe import FusedMoE
from quantdock.loading.expert_slices import Stacked, find_stacked, halves
from quantdock.loading.sources import Sources
from quantdock.methods.experts import ExpertFacts
from quantdock.schemes import LayerFacts

_Parts = dict[str, TensorEntry]  # what is stored of one weight, such as weight_scale
_FOREIGN = "Load the config.json that belongs to these weights, or download both again."


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertForm:
    """How the class of an experts module has the weights of its ``num_experts`` experts.

    Attributes:
        is_known: the class says so; of others little is certain. has_gate: None: not known.
        is_turned: weights are [E, K, N]. is_split: rows of gate come first, then those of up.
    """

    num_experts: int
    is_known: bool
    is_turned: bool
    is_split: bool
    has_gate: bool | None

    @classmethod
    def of(cls, module: Any) -> ExpertForm:
        """Return the form of ``module``, or of what it was before our layer took its place."""
        if isinstance(module, FusedMoE):
            number, own = module.shape.num_experts, getattr(module.gate, "experts", module)
        else:
            parameters = module.parameters(recurse=False)
            number, own = next(len(p) for p in parameters if p.dim() == 3), module
        is_turned = getattr(own, "is_transposed", False)
        return cls(
            num_experts=number,
            is_known=hasattr(own, "_apply_gate"),
            is_turned=is_turned,
            is_split=getattr(own, "is_concatenated", False) and not is_turned,
            has_gate=getattr(own, "has_gate", None),
        )


@dataclass(frozen=True, slots=True)
class _Found:
    """What is stored of each expert, by its role; and what would be there a second time."""

    weights: dict[int, dict[str, LayerFacts]] = field(default_factory=lambda: defaultdict(dict))
    twice: list[str] = field(default_factory=list)

    def add(self, expert: int, role: str, facts: LayerFacts) -> None:
        first = self.weights[expert].setdefault(role, facts)
        if first is not facts:
            self.twice.append(f"expert {expert}: {first.prefix} and {facts.prefix}")


def locate_experts(name: str, module: Any, names: NameMap, sources: Sources) -> list[ExpertFacts]:
    """Return what the checkpoint stores of each expert of the module ``name``.

    Empty where it has none of them in a form that is read expert by expert.

    Raises:
        LoadError: it has some weights of some experts and lacks others, has one twice, or has
            those of more experts than the model; names them.
    """
    form = ExpertForm.of(module)
    prefix = _prefix_of(name, names)
    stacked = _require_number(name, find_stacked(sources.under, prefix, ROLES), form)
    found = _stored_apart(name, names, sources)
    if found.weights:
        _share_biases(found, stacked, form, sources)
    else:
        found = _stored_stacked(name, prefix, stacked, form, sources)
    if not found.weights:
        return []
    _require_once(name, found, form.num_experts)
    w13 = _require_all(name, found.weights, form)
    return [
        ExpertFacts(w13=tuple(own[role] for role in w13), w2=(own["down"],))
        for own in (found.weights[expert] for expert in range(form.num_experts))
    ]


def _prefix_of(name: str, names: NameMap) -> str:
    """Return the prefix under which files have what is stored of all experts of a module."""
    below = (names.layers.get(f"{name}.{weight}") for weight in ROLES)
    parents = (prefix.rpartition(".")[0] for prefix in below if prefix)
    return names.layers.get(name) or next(parents, name)


def _stored_apart(name: str, names: NameMap, sources: Sources) -> _Found:
    """Return the weights that files store one by one, whatever tools have called them."""
    prefixes = [
        source.rpartition(".")[0]
        for target, conversion in names.conversions.items()
        if target.rpartition(".")[0] == name
        for source, _ in conversion.sources
    ]
    prefixes += [source for layer, source in names.layers.items() if layer.startswith(f"{name}.")]
    found = _Found()
    for prefix in dict.fromkeys(prefixes):
        parent, _, weight = prefix.rpartition(".")
        number = parent.rpartition(".")[2]
        if weight in ROLES and number.isdecimal() and sources.under(prefix):
            facts = _facts(prefix, sources, f"{name}.{number}.{weight}")
            found.add(int(number), ROLES[weight], facts)
    return found


def _share_biases(
    found: _Found, stacked: list[Stacked], form: ExpertForm, sources: Sources
) -> None:
    """Let weights that are stored one by one have their part of a bias of all experts."""
    for tensor in (t for t in stacked if t.part == "bias"):
        for expert, entry in enumerate(tensor.slices(form.num_experts)):
            own, role = found.weights[expert], ROLES[tensor.weight]
            if role in own:
                _add_bias(own[role].prefix, entry, sources)
            elif role == "gate_up" and form.is_split and own.keys() >= {"gate", "up"}:
                parts = halves({"bias": entry})
                for half, facts in zip(parts, (own["gate"], own["up"]), strict=False):
                    _add_bias(facts.prefix, half["bias"], sources)


def _add_bias(prefix: str, entry: TensorEntry, sources: Sources) -> None:
    if "bias" not in sources.under(prefix):
        sources.add_part(f"{prefix}.bias", entry)


def _stored_stacked(
    name: str, prefix: str, stacked: list[Stacked], form: ExpertForm, sources: Sources
) -> _Found:
    """Return the weights that files store in one tensor for all experts, slice by slice."""
    found = _Found()
    weights: dict[str, list[Stacked]] = defaultdict(list)
    for tensor in stacked:
        weights[tensor.weight].append(tensor)
    for weight, tensors in weights.items():
        if all(tensor.part == "bias" for tensor in tensors):
            continue
        slices = [tensor.slices(form.num_experts) for tensor in tensors]
        for expert, entries in enumerate(zip(*slices, strict=True)):
            stored = dict(zip((tensor.part for tensor in tensors), entries, strict=True))
            alias = (f"{prefix}.{expert}.{weight}", f"{prefix}.{weight}")
            for own, parts in _divided(weight, stored, form):
                _add_parts(f"{prefix}.{expert}.{own}", parts, form, sources)
                aliases = (f"{name}.{expert}.{own}", *alias)
                facts = _facts(f"{prefix}.{expert}.{own}", sources, *aliases)
                found.add(expert, ROLES[own], facts)
    return found


def _divided(weight: str, stored: _Parts, form: ExpertForm) -> Iterator[tuple[str, _Parts]]:
    """Yield the weights of one expert that ``weight`` holds: gate and up, where it is split."""
    parts = halves(stored) if form.is_split and weight in PARTS else ()
    yield from zip(PARTS[weight], parts, strict=True) if parts else ((weight, stored),)


def _add_parts(prefix: str, parts: _Parts, form: ExpertForm, sources: Sources) -> None:
    # Classes that keep [E, K, N] store plain weights so; codes come as their tools have them.
    is_turned = form.is_turned and parts.keys() <= {"weight", "bias"}
    for last, entry in parts.items():
        add = sources.add_transposed if is_turned and last == "weight" else sources.add_part
        add(f"{prefix}.{last}", entry)


def _facts(prefix: str, sources: Sources, *aliases: str) -> LayerFacts:
    others = tuple(dict.fromkeys(alias for alias in aliases if alias != prefix))
    return LayerFacts(prefix=prefix, kind="experts", aliases=others, stored=sources.stored(prefix))


def _require_number(name: str, stacked: list[Stacked], form: ExpertForm) -> list[Stacked]:
    """Return the tensors that are of as many experts as the model has.

    Raises:
        LoadError: one is not, of a class whose form is known.
    """
    wrong = [tensor for tensor in stacked if not tensor.slices(form.num_experts)]
    if wrong and form.is_known:
        raise LoadError(
            f"{name}: the checkpoint stores tensors of another number of experts.",
            why=[
                few([f"{t.entry.name} is {list(t.entry.shape)}" for t in wrong]),
                f"the model has {form.num_experts} experts, which are the first dimension",
            ],
            todo=_FOREIGN,
            names=tuple(tensor.entry.name for tensor in wrong),
        )
    return [tensor for tensor in stacked if tensor not in wrong]


def _require_once(name: str, found: _Found, num_experts: int) -> None:
    """Raise where weights are stored twice, or of experts that the model does not have."""
    if found.twice:
        raise LoadError(
            f"{name}: the checkpoint stores weights of its experts twice.",
            why=[few(found.twice)],
            todo="Delete the tensors that do not belong to the model; nothing says which.",
        )
    beyond = [own for expert, own in found.weights.items() if expert >= num_experts]
    if beyond:
        prefixes = tuple(facts.prefix for own in beyond for facts in own.values())
        raise LoadError(
            f"{name}: the checkpoint stores experts that the model does not have.",
            why=[few(prefixes), f"the model has experts 0 to {num_experts - 1}"],
            todo=_FOREIGN,
            names=prefixes,
        )


def _require_all(
    name: str, weights: Mapping[int, Mapping[str, LayerFacts]], form: ExpertForm
) -> tuple[str, ...]:
    """Return the roles of the shards of w13, after checking that every expert has them, and w2."""
    known = {role: facts for own in weights.values() for role, facts in own.items()}
    usual = [shards for shards in W13 if form.has_gate in (None, shards != ("up",))]
    w13 = next((shards for shards in usual if known.keys() >= set(shards)), ())
    lost = [f"every expert: {role}" for role in (*w13, "down") if role not in known]
    lost += [
        f"expert {expert}: {_usual(known[role], expert)}"
        for expert in range(form.num_experts)
        for role in (*w13, "down")
        if role in known and role not in weights.get(expert, {})
    ]
    if lost or not w13:
        raise LoadError(
            f"{name}: the checkpoint lacks weights of its experts.",
            why=[few(lost) if lost else f"it has {', '.join(sorted(known))} only"],
            todo="Download the checkpoint again, or check its index.",
        )
    return w13


def _usual(known: LayerFacts, expert: int) -> str:
    """Return the name that the weight of an expert would have, as that of another has it."""
    parent, _, weight = known.prefix.rpartition(".")
    return f"{parent.rpartition('.')[0]}.{expert}.{weight}"


def bias_names(order: str) -> tuple[tuple[str, str], ...]:
    """Return (parameter of our layer, its name in files) of the biases of all experts."""
    return (
        ("w13_bias", "up_proj_bias" if order == "up" else "gate_up_proj_bias"),
        ("w2_bias", "down_proj_bias"),
    )
