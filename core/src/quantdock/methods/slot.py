"""Slot: one tensor that a layer expects from its checkpoint, with all that loading must know."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """One declared tensor of one shard of a layer.

    A fused layer declares the same slots for each of its shards; loading gathers them per shard,
    and decoding sees them apart. ``shapes`` lists every shape that is accepted as equal by count
    (a per-tensor scale as [] or [1]); the first is the one that decoding gets.

    ``row_tile`` and ``col_tile`` say how many rows and columns of the weight one entry covers:
    (1, 1) for codes, (128, 128) for a block scale; None means all. Tensor parallelism cuts by them.
    """

    name: str  # as decoding names it
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]  # storage dtypes that are accepted, the usual one first
    aliases: tuple[str, ...] = ()  # other spellings in files
    default: float | None = None  # stands for an absent tensor; None: it must be there
    row_tile: int | None = 1
    col_tile: int | None = 1

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the shape that decoding gets."""
        return self.shapes[0]

    @property
    def spellings(self) -> tuple[str, ...]:
        """Return every name under which a file may store it, the usual one first."""
        return (self.name, *self.aliases)

    def stored_as(self, names: Container[str]) -> str | None:
        """Return the spelling among ``names`` that stores this slot, the usual one first."""
        return next((spelling for spelling in self.spellings if spelling in names), None)
