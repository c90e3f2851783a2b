"""Layers that differ only in their numbers, shown as one row.

>>> collapse(["model.layers.0.mlp.up_proj", "model.layers.1.mlp.up_proj"])
'model.layers.{0-1}.mlp.up_proj'
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from operator import attrgetter

from quantdock.plan.plan import LayerPlan

# A number of a name in a sentence, or an index of a list. That of a shape is neither: it is a fact.
_QUOTED_NUMBER = re.compile(r"(?<=[A-Za-z_]\.)\d+\b|(?<=[A-Za-z_]\[)\d+(?=\])")
_ANY = "{}"
_NAMES = ("prefix", "because", "source")  # what may hold the layer's own name
# All that layers of one group have in common, besides what their names make of it.
_FACTS = attrgetter(*(f.name for f in fields(LayerPlan) if f.name not in _NAMES))


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerGroup:
    """Layers of one pattern that share every fact; ``example`` is the first of them.

    ``because`` and ``source`` have stars where they name each layer for itself.
    """

    pattern: str
    count: int
    example: LayerPlan
    because: str
    source: str
    bytes_stored: int
    bytes_memory: int


def group_layers(layers: Iterable[LayerPlan]) -> list[LayerGroup]:
    """Return ``layers`` in groups: embeddings first, heads last, in between by name."""
    groups: dict[object, list[LayerPlan]] = {}
    for layer in layers:
        pattern = _pattern(layer.prefix)
        texts = starred(layer.because), starred(layer.source)
        groups.setdefault((pattern, texts, _FACTS(layer)), []).append(layer)
    return sorted((_group(members) for members in groups.values()), key=_order)


def _group(members: list[LayerPlan]) -> LayerGroup:
    first = members[0]
    return LayerGroup(
        pattern=collapse([layer.prefix for layer in members]),
        count=len(members),
        example=first,
        because=common([layer.because for layer in members]),
        source=common([layer.source for layer in members]),
        bytes_stored=sum(layer.bytes_stored or 0 for layer in members),
        bytes_memory=sum(layer.bytes_memory or 0 for layer in members),
    )


@lru_cache(maxsize=4096)
def starred(text: str) -> str:
    """Return ``text`` with a star for each number of a layer's name, and each index of a list."""
    return _QUOTED_NUMBER.sub("*", text)


def common(texts: Iterable[str]) -> str:
    """Return the text of all, which are ``starred`` alike, with stars where their numbers differ.

    >>> common(["layers.0.up.scale is [4], not [8]", "layers.1.up.scale is [4], not [8]"])
    'layers.*.up.scale is [4], not [8]'
    """
    distinct = list(dict.fromkeys(texts))
    numbers = zip(*(_QUOTED_NUMBER.findall(text) for text in distinct), strict=True)
    shown = iter([found[0] if len(set(found)) == 1 else "*" for found in numbers])
    return _QUOTED_NUMBER.sub(lambda _: next(shown), distinct[0])


def _order(group: LayerGroup) -> tuple[int, list[tuple[int, str]]]:
    rank = {"embedding": 0, "head": 2}.get(group.example.kind, 1)
    parts = re.split(r"(\d+)", group.pattern)
    return rank, [(int(part), "") if part.isdigit() else (-1, part) for part in parts]


def collapse(names: Sequence[str]) -> str:
    """Return one pattern for ``names``, which differ in their numbers only: ``{0-2,5}``."""
    parts = []
    for components in zip(*(name.split(".") for name in names), strict=True):
        distinct = {*components}
        numbers = sorted(map(int, distinct)) if len(distinct) > 1 else ()
        parts.append("{" + _ranges(numbers) + "}" if numbers else components[0])
    return ".".join(parts)


def collapse_all(names: Iterable[str]) -> list[str]:
    """Return one pattern for each set of ``names`` that differ in their numbers only."""
    alike: dict[str, list[str]] = {}
    for name in names:
        alike.setdefault(_pattern(name), []).append(name)
    return [collapse(members) for members in alike.values()]


def _pattern(name: str) -> str:
    """Return ``name`` with one mark for each component that is a number."""
    return ".".join([_ANY if part.isdecimal() else part for part in name.split(".")])


def _ranges(values: Sequence[int]) -> str:
    runs: list[list[int]] = []
    for value in values:
        if runs and value == runs[-1][-1] + 1:
            runs[-1][1:] = [value]
        else:
            runs.append([value])
    return ",".join("-".join(str(end) for end in run) for run in runs)
