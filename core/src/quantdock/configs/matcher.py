"""The one matcher for ignore lists, targets and per-layer overrides; dialects translate into it.

>>> from quantdock.schemes import LayerFacts
>>> matcher = Matcher(entries("modules_to_not_convert", ["lm_head", "mlp.gate", "layers.9"]))
>>> matcher.find(LayerFacts(prefix="model.layers.0.mlp.gate")).source
"modules_to_not_convert[1] = 'mlp.gate'"
>>> matcher.find(LayerFacts(prefix="model.layers.0.mlp.gate_up_proj")) is None
True
>>> matcher.unmatched()
("modules_to_not_convert[0] = 'lm_head'", "modules_to_not_convert[2] = 'layers.9'")
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Generic, TypeVar

from quantdock.configs.component_tree import ComponentTree
from quantdock.configs.pattern import (
    COMPONENTS,
    WRAPPERS,
    Dialect,
    Pattern,
    core_depth,
    read_pattern,
)
from quantdock.schemes import LayerFacts

V = TypeVar("V")

# Fused module name -> its shards, as most families of models have them.
FUSION: Mapping[str, Sequence[str]] = MappingProxyType(
    {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")}
)
# Entries of this kind name nothing that a config is asked about.
_NO_LAYER = re.compile(r".*(norm\d*|bias)$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry(Generic[V]):
    """One entry as it is written, where, and what it gives to the layers it matches."""

    text: str
    source: str
    value: V


@dataclass(frozen=True, slots=True, kw_only=True)
class Match(Generic[V]):
    """The entry that matched. ``conflict`` says how shards disagree; empty: they agree."""

    value: V
    source: str
    conflict: str = ""


def entries(name: str, texts: Iterable[str]) -> tuple[Entry[None], ...]:
    """Return the entries of the list called ``name``."""
    return tuple(
        Entry(text=text, source=f"{name}[{index}] = {text!r}", value=None)
        for index, text in enumerate(texts)
    )


class Matcher(Generic[V]):
    """Finds the most specific entry for a layer, and remembers which entries have matched.

    The longest run of components comes first, then the glob with the most literal characters,
    then a regular expression, then a class name; of equals the one listed first.
    """

    def __init__(self, listed: Iterable[Entry[V]], dialect: Dialect = COMPONENTS) -> None:
        self.entries = tuple(listed)
        self._patterns = [read_pattern(e.text, dialect, e.source) for e in self.entries]
        self._matched: set[int] = set()
        self._words = {word for e in self.entries for word in re.findall(r"\w+", e.text)}
        self._usual_wholes = {
            shard: (whole,)
            for whole, shards in FUSION.items()
            for shard in shards
            if whole in self._words
        }
        self._anywhere = ComponentTree()
        self._rooted = ComponentTree()
        self._by_class: dict[str, list[int]] = {}
        for index, pattern in enumerate(self._patterns):
            self._insert(index, pattern)
            if dialect.class_names:
                self._by_class.setdefault(self.entries[index].text, []).append(index)

    def _insert(self, index: int, pattern: Pattern) -> None:
        parts = pattern.parts
        if parts == ("",):
            return
        if pattern.matches is not None:
            self._rooted.add(parts, index)
            return
        depth = core_depth(parts)
        if pattern.anywhere:
            self._anywhere.add(parts, index)
        if parts[depth] in WRAPPERS:  # nothing but wrappers: all that is in them
            self._rooted.add(parts, index)
        elif depth or not pattern.anywhere:
            self._rooted.add(parts[depth:], index)

    def find(
        self, facts: LayerFacts, fusion: Mapping[str, Sequence[str]] | None = None
    ) -> Match[V] | None:
        """Return the entry for a layer, or None.

        A layer is matched by its own name, an alias or its class; a shard also by the name of the
        module that would fuse it; a fused layer also where all its shards are matched alike.

        Args:
            fusion: fused module name -> its shards, besides FUSION.
        """
        if not self.entries:
            return None
        found = self._hits(facts.prefix)
        for alias in facts.aliases:
            found += self._hits(alias)
        stem, dot, last = facts.prefix.rpartition(".")
        if not found:
            for whole in self._wholes(last, fusion):
                found += self._hits(f"{stem}{dot}{whole}")
        if found:
            return self._best(found)
        shards = facts.shards
        if not shards:
            parts = fusion[last] if fusion and last in fusion else FUSION.get(last, ())
            shards = tuple(f"{stem}{dot}{part}" for part in parts)
        vote = self._vote(facts.prefix, _existing(shards, facts)) if shards else None
        classes = [i for name in facts.class_names for i in self._by_class.get(name, ())]
        return self._best(classes) if vote is None and classes else vote

    def unmatched(self) -> tuple[str, ...]:
        """Return the sources of entries that have matched no layer so far.

        Norms and biases are left out: some tools list them although nobody would quantize them.
        """
        return tuple(
            entry.source
            for index, entry in enumerate(self.entries)
            if index not in self._matched and not _NO_LAYER.match(entry.text)
        )

    def _hits(self, name: str) -> list[int]:
        """Return the entries that match ``name`` itself."""
        parts = name.split(".")
        found: list[int] = []
        self._anywhere.find_runs(parts, found)
        candidates: list[int] = []
        self._rooted.find_from(parts, 0, candidates)
        if parts[0] in WRAPPERS and (depth := core_depth(parts)):
            in_core: list[int] = []
            self._rooted.find_from(parts, depth, in_core)
            if parts[depth] in WRAPPERS:  # a row of wrappers is meant as it is written
                in_core = [i for i in in_core if self._patterns[i].matches is not None]
            candidates += in_core
        if candidates:
            found += [i for i in candidates if self._patterns[i].accepts(name)]
        return found

    def _wholes(self, shard: str, fusion: Mapping[str, Sequence[str]] | None) -> Sequence[str]:
        """Return the names of the modules that would fuse ``shard`` and that an entry names."""
        if not fusion:
            return self._usual_wholes.get(shard, ())
        table = {**FUSION, **fusion}
        return [w for w, shards in table.items() if shard in shards and w in self._words]

    def _best(self, found: Sequence[int]) -> Match[V]:
        self._matched.update(found)
        entry = self.entries[min(found, key=lambda i: (self._patterns[i].rank, i))]
        return Match(value=entry.value, source=entry.source)

    def _vote(self, prefix: str, shards: Sequence[str]) -> Match[V] | None:
        """Return what all ``shards`` are matched by; a conflict where they are not alike."""
        votes = [self._best(hits) if (hits := self._hits(s)) else None for s in shards]
        matched = [vote for vote in votes if vote is not None]
        if not matched:
            return None
        first = matched[0]
        if len(matched) == len(votes) and all(vote.value == first.value for vote in matched):
            return first
        told = [
            f"{shard}: {vote.source if vote else 'not listed'}"
            for shard, vote in zip(shards, votes, strict=True)
        ]
        conflict = f"the shards of {prefix} disagree ({'; '.join(told)})"
        return Match(value=first.value, source=first.source, conflict=conflict)


def _existing(shards: Sequence[str], facts: LayerFacts) -> Sequence[str]:
    """Return the shards that the file stores; all of them where that is not known."""
    stored = {key.partition(".")[0] for key in facts.stored or ()}
    return [shard for shard in shards if shard.rpartition(".")[2] in stored] or shards
