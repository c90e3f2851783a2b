"""Experts that files store in one tensor, as one tensor an expert: slices of the same bytes.

Where gate and up lie in one tensor, one after the other, each is a slice of its own too. So a scale
that is made at load never spans both, and of stored scales each has as many rows as it has blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import prod

from quantdock.checkpoint.expert_names import SUFFIXES, has_halves, split_stacked
from quantdock.checkpoint.header import TensorEntry


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertSlice:
    """One expert's part of a stacked tensor: of which weight, and what it is to that."""

    expert: int
    weight: str  # such as gate_up_proj
    part: str  # such as weight_scale_inv
    entry: TensorEntry  # of the expert alone; its name is the stacked tensor's


def slice_experts(
    under: Callable[[str], Mapping[str, TensorEntry]],
    prefix: str,
    weights: Iterable[str],
    num_experts: int,
) -> Iterator[ExpertSlice]:
    """Yield the slices of the stacked tensors of the experts module at ``prefix``.

    A stacked weight is stored under its name or as ``weight`` below it, with its scales beside it.

    Args:
        under: returns what lies directly under a prefix.
        weights: the names that stacked weights may have; others, such as biases, are left alone.
    """
    named = frozenset(weights)
    found = [(*_split(name, named), entry) for name, entry in under(prefix).items()]
    found += [
        (weight, part, entry)
        for weight in weights
        for part, entry in under(f"{prefix}.{weight}").items()
    ]
    for weight, part, entry in found:
        if not weight or entry.shape[:1] != (num_experts,):
            continue
        size = entry.num_bytes // num_experts
        for expert in range(num_experts):
            start = entry.start + expert * size
            own = entry._replace(shape=entry.shape[1:], start=start, end=start + size)
            yield ExpertSlice(expert=expert, weight=weight, part=part, entry=own)


def halves(stored: Mapping[str, TensorEntry]) -> tuple[dict[str, TensorEntry], ...]:
    """Return what is stored of gate, and of up, where ``stored`` is of both, one after the other.

    A lone number is of both. Empty where an entry is of rows of both, as an odd number of rows of
    scales shows.

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
        {part: _half(entry, index) for part, entry in stored.items()} for index in range(2)
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
