"""Experts that files store in one tensor, as one tensor an expert: slices of the same bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from quantdock.checkpoint.header import TensorEntry

# What follows the name of a stacked weight, longest first, and the tensor that it is for a layer.
_SUFFIXES = {
    "_weight_scale_inv": "weight_scale_inv",
    "_weight_scale": "weight_scale",
    "_scale_inv": "weight_scale_inv",
    "_blocks": "weight_blocks",
    "_scales": "weight_scales",
    "_scale": "weight_scale",
    "_weight": "weight",
    "": "weight",
}


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


def _split(name: str, weights: frozenset[str]) -> tuple[str, str]:
    """Return the weight that a stacked tensor belongs to, and what it is to it; empty: neither."""
    for suffix, part in _SUFFIXES.items():
        if name.endswith(suffix) and name[: len(name) - len(suffix)] in weights:
            return name[: len(name) - len(suffix)], part
    return "", ""
