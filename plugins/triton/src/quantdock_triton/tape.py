"""The launches of one call of a layer, to be made again with other addresses.

A product of torch's library may stand between them, which takes tensors instead.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor

from quantdock_triton.raw_launch import bind, expanded
from quantdock_triton.tape_graph import DEFAULT_STREAM, TapeGraph, graph_of

_STREAM = object()  # stands for the stream of a call
SCRATCH = -1  # stands for the memory that launches write and read in between
# A graph takes 0.6 ms to make, and 0.2 for each weight that comes through the copy engine; it keeps
# 100 KB of the GPU's memory. Steps of decoding are called so often, and prompts of one length not.
CALLS_BEFORE_GRAPH = 1024
_MOST_MAPS = 1 << 12  # of one argument that are kept; one for each weight


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


@dataclass(frozen=True, slots=True)
class View(Place):
    """A tensor that starts at a place.

    Attributes:
        is_whole: it is what it is a part of.
    """

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    is_whole: bool = False

    def tensor(self, named: Sequence[Tensor | None], scratch: Tensor) -> Tensor:
        """Return it for a call's named tensors and scratch memory, which is of bytes."""
        source = scratch if self.name == SCRATCH else named[self.name]
        assert source is not None, "a view is of a tensor that was there when it was recorded"
        if self.is_whole:
            return source
        if self.name == SCRATCH:
            source = source.view(self.dtype)
        start = source.storage_offset() + self.offset // self.dtype.itemsize
        return source.as_strided(self.shape, self.stride, start)


@dataclass(frozen=True, slots=True)
class Product:
    """A product of torch's: ``call(*arguments, **options)``, views standing for tensors."""

    call: Callable[..., object]
    arguments: tuple[Any, ...]
    options: dict[str, Any]  # "out" is where it goes

    def __call__(self, named: Sequence[Tensor | None], scratch: Tensor) -> None:
        """Compute it."""

        def given(value: Any) -> Any:
            return value.tensor(named, scratch) if isinstance(value, View) else value

        options = {name: given(value) for name, value in self.options.items()}
        self.call(*map(given, self.arguments), **options)


class Tape:
    """Launches whose addresses are named.

    Args:
        num_names: how many tensors have names, which are 0, 1 and so on.
        scratch_bytes: of memory that the launches write and read in between.

    Attributes:
        has_products: a call needs the tensors, not their addresses alone.
    """

    def __init__(self, num_names: int, scratch_bytes: int) -> None:
        self.scratch_bytes, self.has_products = scratch_bytes, False
        self._num_names = num_names
        self._fixed: list[Any] = []  # numbers, and places in the scratch memory
        self._moving: list[Place] = []  # places in named tensors
        self._kept: list[tuple[Callable[..., object], list[tuple[str, int]]]] = []
        self._steps: list[tuple[Callable[..., object], Any]] = []
        # Where the scratch memory was last, and the values of _fixed then; threads share a tape.
        self._last: tuple[int, tuple[Any, ...]] = (-1, ())
        self._may_be_graph = False
        self._graph: TapeGraph | None = None
        self._calls = 0  # on the default stream, until there is a graph

    @property
    def places(self) -> list[list[Place]]:
        """Return the places among each launch's arguments, in their order."""
        sources = {"stream": (None,), "fixed": self._fixed, "moving": self._moving}
        sources["name"] = [Place(name, 0) for name in range(self._num_names)]
        found = [[sources[kind][index] for kind, index in kept] for _, kept in self._kept]
        return [[each for each in given if isinstance(each, Place)] for given in found]

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
        self._steps = [
            (call, itemgetter(*(starts[kind] + index for kind, index in kept)) if kept else None)
            for call, kept in self._kept
        ]
        self._last = (-1, ())
        self._may_be_graph = len(self._kept) > 1 and not self.has_products
        return True

    def add_product(self, product: Product) -> None:
        """Add a product of torch's, which follows what was added before."""
        self.has_products, self._may_be_graph = True, False
        self._kept.append((product, []))
        self._steps.append((product, None))

    def __call__(
        self,
        stream: int,
        names: Sequence[int],
        scratch: int,
        named: Sequence[Tensor | None] = (),
        memory: Tensor | None = None,
    ) -> None:
        """Launch all on a stream, the current one where there are products.

        Args:
            names: addresses of the named tensors, aligned as when they were recorded.
            scratch: address of ``scratch_bytes``.
            named, memory: the tensors themselves, where there are products.
        """
        by_graph = stream == DEFAULT_STREAM and self._may_be_graph
        if not (by_graph and self._launch_graph(names, scratch)):
            self.launch(stream, names, scratch, named, memory)

    def _launch_graph(self, names: Sequence[int], scratch: int) -> bool:
        """Launch all as a graph, which is made once there were enough calls; return if it was."""
        graph = self._graph
        if graph is None:
            self._calls += 1
            if self._calls < CALLS_BEFORE_GRAPH:
                return False
            graph = self._graph = graph_of(self, names, scratch)
        self._may_be_graph = graph is not None and graph(names, scratch)
        return self._may_be_graph

    def launch(
        self,
        stream: int,
        names: Sequence[int],
        scratch: int,
        named: Sequence[Tensor | None] = (),
        memory: Tensor | None = None,
    ) -> None:
        """Launch one after the other; arguments as of a call."""
        where, fixed = self._last
        if where != scratch:
            fixed = tuple([e.value(scratch) if isinstance(e, Place) else e for e in self._fixed])
            self._last = scratch, fixed
        values = (stream, *names, *fixed)
        if self._moving:
            values += tuple([each.value(names[each.name]) for each in self._moving])
        for call, picked in self._steps:
            if picked is None:
                call(named, memory)
            else:
                call(*picked(values))

    def launch_apart(
        self, stream: int, names: Sequence[int], scratch: int, of_maps: tuple[Sequence[int], int]
    ) -> None:
        """Launch all with addresses of which only those of maps need be real: for a capture.

        Args:
            of_maps: addresses of the named tensors and of the scratch memory that maps are of.
        """

        def value(given: Any) -> Any:
            if not isinstance(given, Place):
                return given
            starts, between = of_maps if isinstance(given, Map) else (names, scratch)
            return given.value(between if given.name == SCRATCH else starts[given.name])

        values = (stream, *names, *map(value, self._fixed), *map(value, self._moving))
        for call, picked in self._steps:
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
