"""The launches of a tape as one graph of CUDA's driver, whose launch takes as long for five as one.

A graph is captured once with made-up addresses, by which the parameters of its kernels are told
apart. Before each launch those that move are set anew, which leaves launches that are under way as
they are. Where the driver lacks anything of that, tapes launch one kernel after the other.

Maps of the copy engine are known to Triton alone, so those of memory that was not seen yet are
read from another capture.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import c_void_p
from dataclasses import dataclass, field
from operator import itemgetter
from struct import Struct
from threading import Lock
from typing import TYPE_CHECKING, Any
from weakref import WeakSet, ref

from quantdock_triton.graph_driver import KernelNode, RefusedError, graph_driver

if TYPE_CHECKING:
    from quantdock_triton.tape import Tape

DEFAULT_STREAM = 0  # is never captured, so that a graph may be launched on it
MOST_GRAPHS = 256  # that there are at once
_MOST_MAPS = 1 << 12  # of one argument that are kept; one for each weight
_MADE_UP, _APART = 1 << 60, 1 << 44  # addresses of the tensors of a capture
_WORD, _MAP = 8, 128  # bytes of an address, and of a map
_STREAM = c_void_p(DEFAULT_STREAM)
_FAILURES = (RefusedError, RuntimeError, AttributeError)  # the driver's, Triton's and of old ones
_Starts = tuple[Sequence[int], int]  # addresses of the named tensors, and of the scratch memory


@dataclass(slots=True)
class _MapSlot:
    """Where the map of a named tensor, or of scratch memory, stands among a node's values."""

    name: int
    value: Any
    last: int = -1  # start of the memory whose map it is
    known: dict[int, bytes] = field(default_factory=dict)  # by the start

    def start(self, names: Sequence[int], scratch: int) -> int:
        return scratch if self.name < 0 else names[self.name]


class TapeGraph:
    """A tape's launches on the default stream, made by ``graph_of``."""

    def __init__(self, tape: Tape, names: Sequence[int], scratch: int) -> None:
        driver = graph_driver()
        if driver is None or len(_GRAPHS) >= MOST_GRAPHS:
            raise RefusedError("no driver, or too many graphs")
        self._driver, self._lock = driver, Lock()
        self._tape, self._places = ref(tape), tape.places  # which keeps this, so this does not
        self._graph = self._captured(names, scratch)
        kernels = self._matched(driver.kernels(self._graph), len(names))
        self._arrange(kernels, len(names))
        self._learn((names, scratch), kernels)
        self._exec = driver.instance(self._graph)
        _GRAPHS.add(self)

    def __del__(self) -> None:
        for name, made in (("cuGraphExecDestroy", "_exec"), ("cuGraphDestroy", "_graph")):
            if hasattr(self, made):
                self._driver.free(name, getattr(self, made))

    def _captured(self, names: Sequence[int], scratch: int) -> c_void_p:
        tape = self._tape()
        assert tape is not None, "whoever asks for a capture has the tape"
        made_up = [_MADE_UP + index * _APART for index in range(len(names) + 1)]
        given = made_up[:-1], made_up[-1], (names, scratch)
        return self._driver.captured(lambda stream: tape.launch_apart(stream, *given))

    def _matched(self, kernels: Sequence[KernelNode], scratch: int) -> list[KernelNode]:
        """Return the kernels in the order of the tape, told by which places they have where."""
        expected = []
        for places in self._places:
            plain = [p for p in places if not hasattr(p, "descriptor")]
            known = [(scratch if p.name < 0 else p.name, p.offset) for p in plain]
            expected.append((tuple(known), len(places) - len(plain)))
        found = {}
        for kernel in kernels:
            numbers = [int.from_bytes(v, "little") for v in kernel.values if len(v) == _WORD]
            moving = (divmod(n - _MADE_UP, _APART) for n in numbers if n >= _MADE_UP)
            found[tuple(moving), sum(len(v) == _MAP for v in kernel.values)] = kernel
        if set(found) != set(expected) or not len(kernels) == len(expected) == len(found):
            raise RefusedError("kernels of the graph are not told apart")
        return [found[each] for each in expected]

    def _arrange(self, kernels: Sequence[KernelNode], scratch: int) -> None:
        """Lay out the values that move: those of the scratch memory behind the others."""
        slots = []
        for kernel in kernels:
            for index, value in enumerate(kernel.values):
                number = int.from_bytes(value, "little") if len(value) == _WORD else 0
                if number >= _MADE_UP:
                    slots.append((*divmod(number - _MADE_UP, _APART), kernel, index))
        slots.sort(key=lambda slot: slot[0] == scratch)
        named = [slot for slot in slots if slot[0] != scratch]
        self._buffer = (ctypes.c_char * (_WORD * max(len(slots), 1)))()
        for place, (_, _, kernel, index) in enumerate(slots):
            kernel.pointers[index] = ctypes.addressof(self._buffer) + place * _WORD
        if not named:
            raise RefusedError("no tensor moves")
        self._offsets = [offset for _, offset, _, _ in named]
        self._has_offsets = any(self._offsets)
        self._pick = itemgetter(*(name for name, *_ in named), named[0][0])  # the last is left out
        self._pack = Struct(f"<{len(named)}Q").pack_into
        self._of_scratch = [offset for _, offset, _, _ in slots[len(named) :]]
        self._pack_scratch = Struct(f"<{len(self._of_scratch)}Q").pack_into
        self._scratch_at, self._scratch = len(named) * _WORD, -1
        self._maps = []
        moved = {id(kernel) for _, _, kernel, _ in named}
        for kernel, places in zip(kernels, self._places, strict=True):
            of_maps = [place for place in places if hasattr(place, "descriptor")]
            values = [value for value in kernel.values if len(value) == _MAP]
            self._maps += [_MapSlot(p.name, v) for p, v in zip(of_maps, values, strict=True)]
            moved |= {id(kernel) for place in of_maps if place.name >= 0}
        self._all = [(kernel.node, kernel.about) for kernel in kernels]
        self._moved = [(k.node, k.about) for k in kernels if id(k) in moved]
        self._kernels = kernels  # whose memory nodes point to

    def _learn(self, starts: _Starts, kernels: Sequence[KernelNode]) -> None:
        """Keep the maps of a capture with memory that starts there."""
        values = [bytes(v) for kernel in kernels for v in kernel.values if len(v) == _MAP]
        for slot, value in zip(self._maps, values, strict=True):
            if len(slot.known) >= _MOST_MAPS:
                slot.known.clear()
            slot.known[slot.start(*starts)] = value

    def _see(self, names: Sequence[int], scratch: int) -> None:
        """Learn the maps of memory that was not seen yet."""
        graph = self._captured(names, scratch)
        try:
            kernels = self._matched(self._driver.kernels(graph), len(names))
            self._learn((names, scratch), kernels)
        finally:
            self._driver.free("cuGraphDestroy", graph)

    def _set_maps(self, names: Sequence[int], scratch: int) -> None:
        for slot in self._maps:
            start = slot.start(names, scratch)
            if start != slot.last:
                if start not in slot.known:
                    self._see(names, scratch)
                slot.last = -1
                ctypes.memmove(slot.value, slot.known[start], _MAP)
                slot.last = start

    def __call__(self, names: Sequence[int], scratch: int) -> bool:
        """Launch all on the default stream; return whether that was done.

        Where a call ends before, the next one sets all.
        """
        picked = self._pick(names)[:-1]
        if self._has_offsets:
            picked = tuple(map(int.__add__, picked, self._offsets))
        with self._lock:
            self._pack(self._buffer, 0, *picked)
            nodes, last, self._scratch = self._moved, self._scratch, -1
            if scratch != last:
                places = [scratch + offset for offset in self._of_scratch]
                self._pack_scratch(self._buffer, self._scratch_at, *places)
                nodes = self._all
            try:
                self._set_maps(names, scratch)
            except _FAILURES:
                return False
            status, set_node, graph = 0, self._driver.set_node, self._exec
            for node, about in nodes:
                status |= set_node(graph, node, about)
            if status:
                return False
            self._scratch = scratch
            return not self._driver.launch(graph, _STREAM)


_GRAPHS: WeakSet[TapeGraph] = WeakSet()


def graph_of(tape: Tape, names: Sequence[int], scratch: int) -> TapeGraph | None:
    """Return the graph of a tape that launches kernels alone; None: there is none.

    Args:
        names, scratch: addresses of a call, whose maps are seen first.
    """
    try:
        return TapeGraph(tape, names, scratch)
    except _FAILURES:
        return None
