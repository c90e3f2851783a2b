"""What graphs of launches take of CUDA's driver: capturing, and kernels' parameters by value."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from ctypes import byref, c_int, c_size_t, c_ulonglong, c_void_p
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from quantdock_triton.raw_launch import triton_version

# Versions with which this has run; and since which more kernels take no longer to launch.
_TRITON, _LEAST_CUDA = frozenset({(3, 6)}), 12060
_NON_BLOCKING, _RELAXED, _KERNEL = 1, 2, 0  # a stream; a capture; a node
_NODE_BYTES = 256  # more than the driver's description of a node has
_PARAMS_AT = 40  # bytes in it, before which stand the function, six sizes and the shared memory


class RefusedError(Exception):
    """The driver did not do what it was asked for."""


@dataclass(frozen=True, slots=True)
class KernelNode:
    """A kernel of a graph with values of its own: ``pointers`` to ``values``, one a parameter."""

    node: c_void_p
    about: Any  # the driver's description, which has the pointers
    values: Sequence[Any]
    pointers: Any


class GraphDriver:
    """Functions of CUDA's driver.

    Attributes:
        launch: a graph on a stream. set_node: of an instance of one, for launches to come; returns
            before another thread may run.
    """

    def __init__(self) -> None:
        self._slow, quick = (kind("libcuda.so.1") for kind in (ctypes.CDLL, ctypes.PyDLL))
        self.launch = self._slow.cuGraphLaunch
        self.set_node = quick.cuGraphExecKernelNodeSetParams_v2

    def __call__(self, name: str, *arguments: Any) -> None:
        """Call a function of the driver.

        Raises:
            RefusedError: it returned anything but 0.
        """
        status = getattr(self._slow, name)(*arguments)
        if status:
            raise RefusedError(f"{name}: {status}")

    def free(self, name: str, made: c_void_p) -> None:
        """Destroy what was made; nothing is lost where the driver is gone before."""
        getattr(self._slow, name)(made)

    def captured(self, launch: Callable[[int], None]) -> c_void_p:
        """Return the graph of what ``launch`` starts on a stream, which is not run."""
        stream, graph, mode = c_void_p(), c_void_p(), c_int(_RELAXED)
        self("cuThreadExchangeStreamCaptureMode", byref(mode))  # others may capture meanwhile
        try:
            self("cuStreamCreate", byref(stream), _NON_BLOCKING)
            self("cuStreamBeginCapture_v2", stream, _RELAXED)
            try:
                launch(stream.value or 0)
            finally:
                self("cuStreamEndCapture", stream, byref(graph))
        finally:
            if stream:
                self.free("cuStreamDestroy_v2", stream)
            self("cuThreadExchangeStreamCaptureMode", byref(mode))
        return graph

    def instance(self, graph: c_void_p) -> c_void_p:
        """Return what can be launched of a graph."""
        made, mode = c_void_p(), c_int(_RELAXED)
        self("cuThreadExchangeStreamCaptureMode", byref(mode))
        try:
            self("cuGraphInstantiateWithFlags", byref(made), graph, c_ulonglong(0))
        finally:
            self("cuThreadExchangeStreamCaptureMode", byref(mode))
        return made

    def kernels(self, graph: c_void_p) -> list[KernelNode]:
        """Return the nodes of a graph in any order, all of which are kernels."""
        count = c_size_t()
        self("cuGraphGetNodes", graph, None, byref(count))
        nodes = (c_void_p * count.value)()
        self("cuGraphGetNodes", graph, nodes, byref(count))
        found = []
        for node in map(c_void_p, nodes):
            kind = c_int()
            self("cuGraphNodeGetType", node, byref(kind))
            if kind.value != _KERNEL:
                raise RefusedError("a node is no kernel")
            found.append(self._kernel(node))
        return found

    def _kernel(self, node: c_void_p) -> KernelNode:
        about = ctypes.create_string_buffer(_NODE_BYTES)
        self("cuGraphKernelNodeGetParams_v2", node, about)
        function = c_void_p.from_buffer(about)
        first = c_void_p.from_buffer(about, _PARAMS_AT)
        given = ctypes.cast(first, ctypes.POINTER(c_void_p))
        values: list[Any] = []
        offset, size = c_size_t(), c_size_t()
        tell = self._slow.cuFuncGetParamInfo
        while not tell(function, c_size_t(len(values)), byref(offset), byref(size)):
            own = (ctypes.c_char * size.value)()
            ctypes.memmove(own, given[len(values)], size.value)
            values.append(own)
        pointers = (c_void_p * len(values))(*map(ctypes.addressof, values))
        first.value = ctypes.addressof(pointers)
        return KernelNode(node, about, values, pointers)


@lru_cache(maxsize=1)
def graph_driver() -> GraphDriver | None:
    """Return the driver; None: there is none, or nobody knows whether it does all this."""
    version = c_int()
    try:
        driver = GraphDriver()
        driver("cuDriverGetVersion", byref(version))
    except (OSError, AttributeError, RefusedError):
        return None
    return driver if version.value >= _LEAST_CUDA and triton_version() in _TRITON else None
