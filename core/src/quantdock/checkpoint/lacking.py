"""Layers that lack a tensor of quantization which most layers of their kind have.

Some of these tensors may be left out (zero points, indices of groups, multipliers of the input), so
that a layer which lost one is read as if it had never had it, and its numbers are wrong.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from quantdock.checkpoint.header import TensorEntry
from quantdock.checkpoint.quantization_tensors import is_quantization_tensor
from quantdock.configs.kv_scales import is_kv_scale

# (last part of the name, dtype) of a layer's tensors, in any order and in the file's.
Parts = frozenset[tuple[str, str]]
Ordered = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Lacking:
    """Layers of one pattern that are stored without ``part``; ``others`` of it have one."""

    part: str
    layers: tuple[str, ...]
    others: int

    def __str__(self) -> str:
        like = "it" if len(self.layers) == 1 else "them"
        return f"stored without {self.part}, which {self.others:,} like {like} have"


def find_lacking(tensors: Mapping[str, TensorEntry]) -> list[Lacking]:
    """Return the layers whose tensors are those of most others of their pattern but for some.

    Layers of other dtypes, or with tensors that the others have not, are quantized otherwise.
    """
    stored: dict[str, Ordered] = {}
    for name, entry in tensors.items():
        prefix, _, part = name.rpartition(".")
        stored[prefix] = (*stored.get(prefix, ()), (part, entry.dtype))
    # What has one kind by the last word of its name has one by its pattern: most models end here.
    kinds_of: dict[str, set[Ordered]] = defaultdict(set)
    for prefix, parts in stored.items():
        kinds_of[prefix.rpartition(".")[2]].add(parts)
    alike: dict[str, dict[str, Parts]] = defaultdict(dict)
    for prefix, parts in stored.items():
        if len(kinds_of[prefix.rpartition(".")[2]]) > 1:
            alike[_pattern(prefix)][prefix] = frozenset(parts)
    found = []
    for layers in alike.values():
        if len(kinds := Counter(layers.values())) > 1:
            found += _lost(layers, kinds)
    return found


def _lost(layers: Mapping[str, Parts], kinds: Counter[Parts]) -> list[Lacking]:
    usual, others = kinds.most_common(1)[0]
    if others * 2 <= len(layers):
        return []
    lost: dict[str, list[str]] = defaultdict(list)
    for prefix, parts in layers.items():
        if parts < usual:
            for part, dtype in sorted(usual - parts):
                is_scale_of_cache = is_kv_scale(f"{prefix}.{part}")  # which have rules of their own
                if is_quantization_tensor(part, dtype) and not is_scale_of_cache:
                    lost[part].append(prefix)
    return [Lacking(part=part, layers=tuple(who), others=others) for part, who in lost.items()]


def _pattern(prefix: str) -> str:
    return ".".join(["*" if part.isdecimal() else part for part in prefix.split(".")])
