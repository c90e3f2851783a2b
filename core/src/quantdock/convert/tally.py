"""Tally: how many values of a checkpoint changed on the way to another format, layer by layer."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from quantdock.errors import MismatchError
from quantdock.numerics import Change

_NAMED = 3  # layers that are named with their numbers


class Tally:
    """The changes of the layers that were converted so far; a layer counts once."""

    def __init__(self, to: str) -> None:
        self._to = to
        self._changes: dict[str, Change] = {}

    def add(self, prefix: str, change: Change) -> None:
        """Note what became of the layer ``prefix``."""
        self._changes[prefix] = change

    def notes(self) -> Iterator[str]:
        """Yield whether all values are what they were, or how many are not, and by how much."""
        values = sum(change.num_values for change in self._changes.values())
        total = Change(
            num_values=values,
            num_changed=sum(change.num_changed for change in self._changes.values()),
            largest=max((change.largest for change in self._changes.values()), default=0.0),
        )
        if not total.num_changed:
            yield f"exact: all {values:,} values stay as they were"
            return
        yield f"not exact: {total}"
        worst = self._worst()
        yield f"most in {worst[0][0]}: {worst[0][1]}"

    def require_exact(self, folder: Path) -> None:
        """Raise if a value changed.

        Raises:
            MismatchError: naming the layers with most changes.
        """
        if worst := self._worst():
            rest = len(worst) - _NAMED
            more = [f"and {rest:,} more layers"] if rest > 0 else []
            raise MismatchError(
                f"{folder} cannot become {self._to} without changing values.",
                why=[*(f"{prefix}: {change}" for prefix, change in worst[:_NAMED]), *more],
                todo="Leave --exact out to accept that, convert the 16-bit original, or use this "
                "checkpoint as it is.",
            )

    def _worst(self) -> list[tuple[str, Change]]:
        changed = [item for item in self._changes.items() if item[1].num_changed]
        return sorted(changed, key=lambda item: -item[1].share)
