"""Experts that files store in one tensor, as one tensor an expert: slices of the same bytes.

Where gate and up lie in one tensor, one after the other, each is a slice of its own too. So a scale
that is made at load never spans both, and of stored scales each has as many rows as it has blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from math import prod

from quantdock.checkpoint.expert_names import SHAPE, SUFFIXES, has_halves, split_stacked
from quantdock.checkpoint.header import TensorEntry

# Parts of which one number may stand for all experts.
_SCALES = frozenset(part for part in SUFFIXES.values() if "scale" in part)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stacked:
    """One tensor of all experts: of which weight, and what it is to that."""

    weight: str  # such as gate_up_proj
    part: str  # such as weight_scale_inv
    entry: TensorEntry

    def slices(self, num_experts: int) -> list[TensorEntry]:
        """Return each expert's part, under the name of the whole; empty: it is not of so many.

        A lone scale is every expert's, and so is the shape that one tensor states of all: its
        last two numbers.
        """
        entry = self.entry
        if self.part == SHAPE and entry.shape == (3,):
            start = entry.start + entry.num_bytes // 3
            return [entry._replace(shape=(2,), start=start)] * num_experts
        if self.part in _SCALES and prod(entry.shape) == 1:
            return [entry._replace(shape=())] * num_experts
        if entry.shape[:1] != (num_experts,):
            return []
        size = entry.num_bytes // num_experts
        starts = (entry.start + expert * size for expert in range(num_experts))
        return [
            entry._replace(shape=entry.shape[1:], start=start, end=start + size) for start in starts
        ]


def find_stacked(
    under: Callable[[str], Mapping[str, TensorEntry]], prefix: str, weights: Iterable[str]
) -> list[Stacked]:
    """Return the stacked tensors of the experts module at ``prefix``.

    A stacked weight is stored under its name or as ``weight`` below it, with its scales beside it.

    Args:
        under: returns what lies directly under a prefix.
        weights: the names that stacked weights may have; other tensors are left alone.
    """
    named = frozenset(weights)
    found = [(*_split(name, named), entry) for name, entry in under(prefix).items()]
    found += [
        (weight, part, entry)
        for weight in weights
        for part, entry in under(f"{prefix}.{weight}").items()
    ]
    return [Stacked(weight=w, part=part, entry=entry) for w, part, entry in found if w]


def usual_name(prefix: str, part: str, under: Mapping[str, TensorEntry]) -> str:
    """Return what a file would call ``part`` of the weight ``prefix``, as its other parts are.

    >>> from pathlib import Path
    >>> blocks = TensorEntry("experts.down_proj_blocks", "uint8", (2, 2), Path("file"), 0, 4)
    >>> usual_name("experts.0.down_proj", "weight_scales", {"weight_blocks": blocks})
    'experts.down_proj_scales'
    """
    for last, entry in under.items():
        stem, _, own = entry.name.rpartition(".")
        if entry.name == f"{prefix}.{last}":
            continue
        if own == last:
            return f"{stem}.{part}"
        suffix = [suffix for suffix, meant in SUFFIXES.items() if meant == part]
        return f"{stem}.{split_stacked(own)[0]}{suffix[-1] if suffix else f'_{part}'}"
    return f"{prefix}.{part}"


def halves(stored: Mapping[str, TensorEntry]) -> tuple[dict[str, TensorEntry], ...]:
    """Return what is stored of gate, and of up, where ``stored`` is of both, one after the other.

    A lone number is of both, and so is a stated shape. Empty where an entry is of rows of both, as
    an odd number of rows of scales shows.

    >>> from pathlib import Path
    >>> def entry(*shape):
    ...     size = 4 * prod(shape)
    ...     return TensorEntry("scale", "float32", shape, Path("file"), 0, size)
    >>> [part["scale"].shape for part in halves({"scale": entry(4, 2)})]
    [(2, 2), (2, 2)]
    >>> halves({"scale": entry(3, 2)})
    ()
    """
    if not has_halves(entry.shape for entry in stored.values()):
        return ()
    return tuple(
        {part: entry if part == SHAPE else _half(entry, index) for part, entry in stored.items()}
        for index in range(2)
    )


def _half(entry: TensorEntry, index: int) -> TensorEntry:
    if prod(entry.shape) == 1:
        return entry
    size = entry.num_bytes // 2
    start = entry.start + index * size
    shape = (entry.shape[0] // 2, *entry.shape[1:])
    return entry._replace(shape=shape, start=start, end=start + size)


def _split(name: str, weights: frozenset[str]) -> tuple[str, str]:
    """Return the weight that a stacked tensor belongs to, and what it is to it; empty: neither."""
    weight, suffix = split_stacked(name)
    return (weight, SUFFIXES[suffix]) if weight in weights else ("", "")
