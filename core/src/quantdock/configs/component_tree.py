"""ComponentTree: entries by their dotted components, found in the time one name takes to read."""

from __future__ import annotations

from collections.abc import Sequence


class ComponentTree:
    """A tree of components; each place keeps the entries whose components end there."""

    __slots__ = ("_children", "_ends")

    def __init__(self) -> None:
        self._children: dict[str, ComponentTree] = {}
        self._ends: list[int] = []

    def add(self, parts: Sequence[str], entry: int) -> None:
        """Keep ``entry`` under ``parts``; no parts: it ends before the first component."""
        node = self
        for part in parts:
            node = node._children.setdefault(part, ComponentTree())
        node._ends.append(entry)

    def find_from(self, parts: Sequence[str], start: int, found: list[int]) -> None:
        """Add to ``found`` the entries whose components stand in ``parts`` from ``start`` on."""
        found += self._ends
        children = self._children
        for index in range(start, len(parts)):
            node = children.get(parts[index])
            if node is None:
                return
            if node._ends:
                found += node._ends
            children = node._children

    def find_runs(self, parts: Sequence[str], found: list[int]) -> None:
        """Add to ``found`` the entries whose components stand anywhere in ``parts``, in a row."""
        children = self._children
        if children.keys().isdisjoint(parts):
            return
        for start, part in enumerate(parts):
            if part in children:
                self.find_from(parts, start, found)
