"""The experts of each layer together: whether all are stored, once, and whether all are alike.

Loading builds them as one module, so what is wrong with one expert stops all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

from quantdock.checkpoint.expert_names import ROLES, W13
from quantdock.checkpoint.model_facts import is_beyond
from quantdock.methods.expert_decision import agree
from quantdock.plan.stored_faults import StoredFault, misfit, missing, whole
from quantdock.plan.stored_layers import StoredLayer, StoredModel
from quantdock.schemes import Decision

_BIAS, _DOWN = "bias", "down"
_UNREAD = "loading stops at what it would not read of experts"
_ALL = -1  # the place of a weight that holds all experts
_MOST_MISSING = 1000  # experts that are told one by one where config.json says a huge number
Agreed = tuple[Decision, Decision]  # what w13 and w2 of a module become
Parts = tuple[list[int], list[int]]  # which of the model's layers are w13, and which w2


@dataclass(slots=True)
class ExpertModule:
    """One experts module: (expert, role) -> which of the model's layers is stored there."""

    name: str
    places: dict[tuple[int, str], int] = field(default_factory=dict)
    twice: list[tuple[int, int]] = field(default_factory=list)  # the layer and another of its place

    @property
    def is_stacked(self) -> bool:
        """Return whether its weights hold all experts."""
        return any(expert == _ALL for expert, _ in self.places)


def find_modules(layers: Sequence[StoredLayer], depth: int | None) -> list[ExpertModule]:
    """Return the experts modules that ``layers`` make up, without those beyond ``depth``."""
    modules: dict[str, ExpertModule] = {}
    for index, layer in enumerate(layers):
        if layer.facts.kind != "experts":
            continue
        stem, _, weight = layer.facts.prefix.rpartition(".")
        role = ROLES.get(weight)
        if role is None:
            continue
        name, _, number = stem.rpartition(".")
        expert = int(number) if number.isdecimal() else _ALL
        name = stem if expert == _ALL else name
        module = modules.get(name) or modules.setdefault(name, ExpertModule(name))
        first = module.places.setdefault((expert, role), index)
        if first != index:
            module.twice.append((index, first))
    return [module for module in modules.values() if not is_beyond(module.name, depth)]


def agreements(
    modules: Sequence[ExpertModule], layers: Sequence[StoredLayer], decisions: Sequence[Decision]
) -> Iterator[tuple[Agreed, Parts]]:
    """Yield what loading makes of modules whose layers do not show it one by one.

    It refuses them, or a kernel that runs experts whole has two schemes to take, or a promise that
    not all of the layers were given.
    """
    for module in modules:
        parts: Parts = ([], [])
        for (_, role), index in module.places.items():
            parts[role == _DOWN].append(index)
        firsts = [decisions[indices[0]] for indices in parts if indices]
        are_alike = all(len({id(decisions[i]) for i in indices}) == 1 for indices in parts)
        if len(firsts) < 2 or any(decisions[i].error for part in parts for i in part):
            continue  # these say it themselves
        if are_alike and firsts[0].kind == firsts[1].kind:  # the usual case, fast
            if _differ(firsts):
                yield (firsts[0], firsts[1]), parts
            continue
        agreed = agree(*([(layers[i].facts.prefix, decisions[i]) for i in part] for part in parts))
        if agreed[0].error or _differ(decisions[i] for part in parts for i in part):
            yield agreed, parts


def _differ(decisions: Iterable[Decision]) -> bool:
    return len({(decision.scheme, decision.promised) for decision in decisions}) > 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Completeness:
    """Compares the experts modules of a model with what config.json and other modules have."""

    modules: Sequence[ExpertModule]
    model: StoredModel
    num_experts: int | None  # None: as many as a module shows

    @property
    def layers(self) -> Sequence[StoredLayer]:
        """The layers of the model."""
        return self.model.layers

    def faults(self) -> Iterator[StoredFault]:
        """Yield weights that are missing, stored twice, or of experts that the model lacks."""
        like, biased = self._examples(), self._biased()
        for name in self.model.strays if self.modules else ():
            yield whole(name, "stored, and no expert has such a tensor", _UNREAD)
        for module in self.modules:
            yield from self._not_wanted(module)
            yield from self._missing(module, like)
            yield from self._misshapen(module)
            if module.is_stacked in biased:
                for index in module.places.values():
                    if not _has_bias(layer := self.layers[index]):
                        why = "other experts of the model have one"
                        yield missing(layer, _BIAS, layer.facts.prefix, why)

    def _examples(self) -> dict[tuple[bool, str], StoredLayer]:
        """Return one layer of each role, with a bias where one has it; stacked ones apart."""
        found: dict[tuple[bool, str], StoredLayer] = {}
        seen: set[tuple[bool, str, int]] = set()  # layers that store the same share a layout
        for module in self.modules:
            is_stacked = module.is_stacked
            for (_, role), index in module.places.items():
                layer = self.layers[index]
                kind = (is_stacked, role, id(layer.layout))
                if kind not in seen:
                    seen.add(kind)
                    if (is_stacked, role) not in found or _has_bias(layer):
                        found[is_stacked, role] = layer
        return found

    def _biased(self) -> set[bool]:
        """Return whether most stacked weights, and most of the others, have biases."""
        counts: Counter[tuple[bool, bool]] = Counter()
        for module in self.modules:
            is_stacked = module.is_stacked
            for index in module.places.values():
                counts[is_stacked, _BIAS in self.layers[index].layout.stored] += 1
        return {kind for kind in (False, True) if counts[kind, True] > counts[kind, False]}

    def _misshapen(self, module: ExpertModule) -> Iterator[StoredFault]:
        """Yield weights that are stored as others of their role, in another shape."""
        kinds = {(role, id(self.layers[i].layout)) for (_, role), i in module.places.items()}
        if len(kinds) == len({role for role, _ in kinds}):
            return  # the usual case, fast
        alike: dict[tuple[str, str, str], dict[tuple[int, ...], list[int]]] = {}
        for (_, role), index in module.places.items():
            stored = self.layers[index].layout.stored
            part = _codes(self.layers[index])
            kind = (role, part, stored[part].dtype)
            alike.setdefault(kind, {}).setdefault(stored[part].shape, []).append(index)
        for (_, part, _), shapes in alike.items():
            usual = max(shapes, key=lambda shape: len(shapes[shape]))
            for shape, indices in shapes.items():
                is_odd = shape != usual and len(shape) == len(usual)
                for index in indices if is_odd else ():
                    yield misfit(self.layers[index], part, usual)

    def _count(self, module: ExpertModule) -> int:
        return self.num_experts or 1 + max(expert for expert, _ in module.places)

    def _not_wanted(self, module: ExpertModule) -> Iterator[StoredFault]:
        for index, first in module.twice:
            text = f"stored, and {self.layers[first].facts.prefix} is the same weight"
            yield whole(self.layers[index].facts.prefix, text, _UNREAD)
        count = self._count(module)
        for (expert, _), index in module.places.items():
            if expert >= count:
                text = f"stored, and the model has {count} experts"
                yield whole(self.layers[index].facts.prefix, text, "they are numbered from 0")

    def _missing(
        self, module: ExpertModule, like: Mapping[tuple[bool, str], StoredLayer]
    ) -> Iterator[StoredFault]:
        """Yield the empty places of a module, named as those of other experts are."""
        is_stacked = module.is_stacked
        known = {role for stacked, role in like if stacked is is_stacked}
        w13 = next((shards for shards in W13 if known.issuperset(shards)), ())
        roles = (*w13, _DOWN) if w13 and _DOWN in known else ()
        count = self._count(module)
        told = min(count, len(module.places) + _MOST_MISSING)
        experts = (_ALL,) if is_stacked else range(told)
        if len(module.places) == len(experts) * len(roles):
            return
        for expert in experts:
            for role in roles:
                if (expert, role) not in module.places:
                    layer = like[is_stacked, role]
                    weight = layer.facts.prefix.rpartition(".")[2]
                    number = "" if is_stacked else f"{expert}."
                    why = f"each of the {count} experts has its own" if number else ""
                    prefix = f"{module.name}.{number}{weight}"
                    yield missing(layer, _codes(layer), prefix, why)


def _has_bias(layer: StoredLayer) -> bool:
    return _BIAS in layer.layout.stored


def _codes(layer: StoredLayer) -> str:
    """Return the tensor of a layer's codes, or its plain weight: the largest."""
    stored = layer.layout.stored
    return max(stored, key=lambda part: prod(stored[part].shape))
