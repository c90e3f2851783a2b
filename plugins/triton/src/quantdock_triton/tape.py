"""The launches of one call of a layer, to be made again with other addresses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any

from quantdock_triton.raw_launch import bind, expanded

_STREAM = object()  # stands for the stream of a call
SCRATCH = -1  # stands for the memory that launches write and read in between
_MOST_MAPS = 1 << 14  # of one argument that are kept; one for each weight


@dataclass(frozen=True, slots=True)
class Place:
    """An address: so many bytes after the start of a named tensor, or of the scratch memory."""

    name: int  # index of the tensor, or SCRATCH
    offset: int

    def value(self, start: int) -> Any:
        """Return the address, where the tensor starts at ``start``."""
        return start + self.offset


@dataclass(frozen=True, slots=True)
class Map(Place):
    """A descriptor of what is at a place, as the copy engine wants it.

    Attributes:
        descriptor: of a tensor that was there once.
        compiled: the kernel that takes it, as the ``index``-th of its descriptors.
    """

    descriptor: Any
    compiled: Any
    index: int
    made: dict[int, Any] = field(default_factory=dict, compare=False, repr=False)  # by the start

    def value(self, start: int) -> Any:
        """Return the map, where the tensor starts at ``start``."""
        found = self.made.get(start)
        if found is None:
            moved = copy(self.descriptor)
            moved.base = _Address(start + self.offset)
            if len(self.made) >= _MOST_MAPS:
                self.made.clear()
            found = self.made[start] = expanded(moved, self.compiled, self.index)[0]
        return found


@dataclass(frozen=True, slots=True)
class _Address:
    """What Triton asks a tensor for."""

    address: int

    def data_ptr(self) -> int:
        return self.address


class Tape:
    """Launches whose addresses are named.

    Args:
        num_names: how many tensors have names, which are 0, 1 and so on.
        scratch_bytes: of memory that the launches write and read in between.
    """

    def __init__(self, num_names: int, scratch_bytes: int) -> None:
        self.scratch_bytes = scratch_bytes
        self._num_names = num_names
        self._fixed: list[Any] = []  # numbers, and places in the scratch memory
        self._moving: list[Place] = []  # places in named tensors
        self._kept: list[tuple[Callable[..., object], list[tuple[str, int]]]] = []
        self._launches: list[tuple[Callable[..., object], Any]] = []
        self._scratch = 0
        self._values: tuple[Any, ...] = ()  # of _fixed, with that scratch memory

    def add(self, compiled: Any, grid: Sequence[int], arguments: Sequence[Any]) -> bool:
        """Add a launch whose arguments are numbers and places; return whether that can be."""
        has_maps = any(isinstance(argument, Map) for argument in arguments)
        launch = bind(compiled, grid, has_maps)
        if launch is None:
            return False
        given = (*launch.before, _STREAM, *launch.after, *arguments)
        self._kept.append((launch.call, [self._keep(argument) for argument in given]))
        starts = {"stream": 0, "name": 1, "fixed": 1 + self._num_names}
        starts["moving"] = starts["fixed"] + len(self._fixed)
        self._launches = [
            (call, itemgetter(*(starts[kind] + index for kind, index in kept)))
            for call, kept in self._kept
        ]
        self._values = ()
        return True

    def __call__(self, stream: int, names: Sequence[int], scratch: int) -> None:
        """Launch all on a stream.

        Args:
            names: addresses of the named tensors, aligned as when they were recorded.
            scratch: address of ``scratch_bytes``.
        """
        if scratch != self._scratch or not self._values:
            self._values = tuple(
                [e.value(scratch) if isinstance(e, Place) else e for e in self._fixed]
            )
            self._scratch = scratch
        values = (stream, *names, *self._values)
        if self._moving:
            values += tuple([each.value(names[each.name]) for each in self._moving])
        for call, picked in self._launches:
            call(*picked(values))

    def _keep(self, argument: Any) -> tuple[str, int]:
        """Return where the values of a call have this argument."""
        if argument is _STREAM:
            return "stream", 0
        if not isinstance(argument, Place) or argument.name == SCRATCH:
            self._fixed.append(argument)
            return "fixed", len(self._fixed) - 1
        if argument.offset == 0 and not isinstance(argument, Map):
            return "name", argument.name
        self._moving.append(argument)
        return "moving", len(self._moving) - 1
