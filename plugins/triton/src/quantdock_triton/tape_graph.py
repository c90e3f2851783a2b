"""The launches of a tape as one graph of CUDA's driver, whose launch takes as long for five as one.

A graph is captured once with made-up addresses, by which the parameters of its kernels are told
apart. Before each launch those that move are set anew, which leaves launches that are under way as
they are. Where the driver lacks anything of that, tapes launch one kernel after the other.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from ctypes import byref, c_size_t, c_ulonglong, c_void_p
from dataclasses import dataclass
from functools import lru_cache
from operator import itemgetter
from struct import Struct
from threading import Lock
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from quantdock_triton.raw_launch import triton_version

if TYPE_CHECKING:
    from quantdock_triton.tape import Tape

DEFAULT_STREAM = 0  # is never captured, so that a graph may be launched on it
_NON_BLOCKING, _RELAXED, _KERNEL = 1, 2, 0  # a stream; a capture; a node
_MADE_UP, _APART = 1 << 60, 1 << 44  # addresses of the tensors of a capture
_WORD = 8  # bytes of an address
_NODE_BYTES = 256  # more than the driver's description of a node has
_PARAMS_AT = 40  # bytes in it, before which stand the function, six sizes and the shared memory


# Versions with which this has run; and since which more kernels take no longer to launch.
_TRITON, _LEAST_CUDA = frozenset({(3, 6)}), 12060
MOST_GRAPHS = 256  # that there are at once


class _Refused(Exception):
    """The driver did not do what it was asked for."""


class _Driver:
    """Functions of CUDA's driver; those of ``quick`` return before another thread may run."""

    def __init__(self) -> None:
        self.slow, self.quick = (kind("libcuda.so.1") for kind in (ctypes.CDLL, ctypes.PyDLL))
        self.launch = self.slow.cuGraphLaunch
        self.set_node = self.quick.cuGraphExecKernelNodeSetParams_v2

    def __call__(self, name: str, *arguments: Any) -> None:
        status = getattr(self.slow, name)(*arguments)
        if status:
            raise _Refused(f"{name}: {status}")


@lru_cache(maxsize=1)
def _driver() -> _Driver | None:
    """Return the driver; None: there is none, or nobody knows whether it does all this."""
    version = ctypes.c_int()
    try:
        driver = _Driver()
        driver("cuDriverGetVersion", byref(version))
    except (OSError, AttributeError, _Refused):
        return None
    return driver if version.value >= _LEAST_CUDA and triton_version() in _TRITON else None


@dataclass(frozen=True, slots=True)
class _Slot:
    """Where a parameter's value is kept that moves: with a named tensor, or the scratch memory."""

    name: int  # one more than the last: the scratch memory
    offset: int


class TapeGraph:
    """A tape's launches on the default stream, made by ``graph_of``."""

    def __init__(self, tape: Tape, num_names: int) -> None:
        driver = _driver()
        if driver is None or len(_GRAPHS) >= MOST_GRAPHS:
            raise _Refused("no driver, or too many graphs")
        self._driver, self._num_names, self._lock = driver, num_names, Lock()
        self._graph, self._exec = c_void_p(), c_void_p()
        self._capture(tape)
        self._kept: list[Any] = []  # what nodes point to
        found = [self._parameters(node) for node in self._nodes()]
        count = sum(len(moving) for _, moving, _ in found)
        if count != tape.num_places:
            raise _Refused(f"{count} parameters move, and {tape.num_places} should")
        self._arrange(found)
        _GRAPHS.add(self)

    def __del__(self) -> None:
        if getattr(self, "_exec", None):
            self._driver.slow.cuGraphExecDestroy(self._exec)
        if getattr(self, "_graph", None):
            self._driver.slow.cuGraphDestroy(self._graph)

    def _capture(self, tape: Tape) -> None:
        driver, stream, mode = self._driver, c_void_p(), ctypes.c_int(_RELAXED)
        driver("cuThreadExchangeStreamCaptureMode", byref(mode))  # others may capture meanwhile
        try:
            driver("cuStreamCreate", byref(stream), _NON_BLOCKING)
            driver("cuStreamBeginCapture_v2", stream, _RELAXED)
            try:
                names = [_MADE_UP + index * _APART for index in range(self._num_names + 1)]
                tape.launch(stream.value or 0, names[:-1], names[-1])
            finally:
                driver("cuStreamEndCapture", stream, byref(self._graph))
            driver("cuGraphInstantiateWithFlags", byref(self._exec), self._graph, c_ulonglong(0))
        finally:
            if stream:
                driver.slow.cuStreamDestroy_v2(stream)
            driver("cuThreadExchangeStreamCaptureMode", byref(mode))

    def _nodes(self) -> Iterator[c_void_p]:
        count = c_size_t()
        self._driver("cuGraphGetNodes", self._graph, None, byref(count))
        nodes = (c_void_p * count.value)()
        self._driver("cuGraphGetNodes", self._graph, nodes, byref(count))
        for node in nodes:
            kind = ctypes.c_int()
            self._driver("cuGraphNodeGetType", c_void_p(node), byref(kind))
            if kind.value != _KERNEL:
                raise _Refused("a node is no kernel")
            yield c_void_p(node)

    def _parameters(self, node: c_void_p) -> tuple[c_void_p, dict[int, _Slot], Any]:
        """Return a node, which of its parameters move, and its description, with own values."""
        about = ctypes.create_string_buffer(_NODE_BYTES)
        self._driver("cuGraphKernelNodeGetParams_v2", node, about)
        function = c_void_p.from_buffer(about)
        first = c_void_p.from_buffer(about, _PARAMS_AT)
        given = ctypes.cast(first, ctypes.POINTER(c_void_p))
        moving: dict[int, _Slot] = {}
        values: list[ctypes.Array[ctypes.c_char]] = []
        offset, size = c_size_t(), c_size_t()
        slow = self._driver.slow
        while not slow.cuFuncGetParamInfo(
            function, c_size_t(len(values)), byref(offset), byref(size)
        ):
            value = ctypes.create_string_buffer(ctypes.string_at(given[len(values)], size.value))
            number = int.from_bytes(value.raw[:_WORD], "little")
            if size.value == _WORD and number >= _MADE_UP:
                moving[len(values)] = _Slot(*divmod(number - _MADE_UP, _APART))
            values.append(value)
        pointers = (c_void_p * len(values))(*(ctypes.addressof(value) for value in values))
        first.value = ctypes.addressof(pointers)
        self._kept += [about, values, pointers]
        return node, moving, (about, pointers)

    def _arrange(self, found: Sequence[tuple[c_void_p, dict[int, _Slot], Any]]) -> None:
        """Lay out the values that move: those of the scratch memory behind the others."""
        scratch = self._num_names
        order = [(s, index, pointers) for _, moving, (_, pointers) in found
                 for index, s in moving.items()]  # fmt: skip
        order.sort(key=lambda each: each[0].name == scratch)
        self._buffer = ctypes.create_string_buffer(_WORD * max(len(order), 1))
        start = ctypes.addressof(self._buffer)
        for place, (_, index, pointers) in enumerate(order):
            pointers[index] = start + place * _WORD
        named = [s for s, _, _ in order if s.name != scratch]
        self._offsets = [s.offset for s in named] if any(s.offset for s in named) else None
        self._pick = itemgetter(*(s.name for s in named), named[0].name)  # the last is left out
        self._pack = Struct(f"<{len(named)}Q").pack_into
        self._of_scratch = [s.offset for s, _, _ in order[len(named) :]]
        self._pack_scratch = Struct(f"<{len(self._of_scratch)}Q").pack_into
        self._scratch_at, self._scratch = len(named) * _WORD, -1
        self._moved = [
            (node, about) for node, moving, (about, _) in found
            if any(s.name != scratch for s in moving.values())
        ]  # fmt: skip
        self._all = [(node, about) for node, _, (about, _) in found]
        self._stream = c_void_p(DEFAULT_STREAM)

    def __call__(self, names: Sequence[int], scratch: int) -> bool:
        """Launch all on the default stream; return whether the driver has."""
        picked = self._pick(names)[:-1]
        if self._offsets is not None:
            picked = tuple(map(int.__add__, picked, self._offsets))
        with self._lock:
            self._pack(self._buffer, 0, *picked)
            nodes = self._moved
            if scratch != self._scratch:
                places = [scratch + offset for offset in self._of_scratch]
                self._pack_scratch(self._buffer, self._scratch_at, *places)
                self._scratch, nodes = scratch, self._all
            status, set_node, graph = 0, self._driver.set_node, self._exec
            for node, about in nodes:
                status |= set_node(graph, node, about)
            return not (status or self._driver.launch(graph, self._stream))


_GRAPHS: WeakSet[TapeGraph] = WeakSet()


def graph_of(tape: Tape, num_names: int) -> TapeGraph | None:
    """Return the graph of a tape that launches kernels with places alone; None: there is none."""
    try:
        return TapeGraph(tape, num_names)
    except (_Refused, AttributeError):
        return None
