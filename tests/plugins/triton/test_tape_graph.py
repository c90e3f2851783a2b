"""Tapes as graphs of the driver, beside a driver in Python that runs what it is told to launch."""

from __future__ import annotations

import ctypes
import sys
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from weakref import WeakSet

import pytest

from quantdock_triton import tape_graph
from quantdock_triton.graph_driver import GraphDriver
from quantdock_triton.raw_launch import Launch
from quantdock_triton.tape import CALLS_BEFORE_GRAPH, SCRATCH, Map, Place, Tape

SET = "cuGraphExecKernelNodeSetParams_v2"


class Driver:
    """Captures launches, keeps parameters of nodes by value, and launches with what was set."""

    def __init__(self):
        self.captured, self.execs, self.launches, self.stream = [], {}, [], 7
        self.is_capturing, self.modes, self.refuses = False, [], set()
        self.num_graph_launches = self.num_captures = 0

    def __getattribute__(self, name):
        if name in object.__getattribute__(self, "refuses") and name.startswith("cu"):
            return lambda *given: 801
        return object.__getattribute__(self, name)

    def run(self, *given):
        """Stand for a kernel's launch by Triton: grid, stream, and arguments."""
        assert self.is_capturing == (given[0] == self.stream)
        (self.captured if self.is_capturing else self.launches).append(given[1:])

    def cuThreadExchangeStreamCaptureMode(self, mode):
        self.modes.append(mode._obj.value)
        mode._obj.value = 0

    def cuStreamCreate(self, stream, flags):
        stream._obj.value = self.stream

    def cuStreamBeginCapture_v2(self, stream, mode):
        self.is_capturing, self.num_captures = True, self.num_captures + 1
        self.captured.clear()

    def cuStreamEndCapture(self, stream, graph):
        self.is_capturing, graph._obj.value = False, 1

    def cuStreamDestroy_v2(self, stream):
        pass

    def cuGraphInstantiateWithFlags(self, made, graph, flags):
        made._obj.value = 2
        self.kinds = list(self.captured)
        self.execs = dict(enumerate(map(list, self.captured), 1))

    def cuGraphGetNodes(self, graph, nodes, count):
        count._obj.value = len(self.captured)
        for index in range(len(self.captured) if nodes else 0):
            nodes[index] = index + 1

    def cuGraphNodeGetType(self, node, kind):
        kind._obj.value = 0

    def cuGraphKernelNodeGetParams_v2(self, node, about):
        self.held = [in_memory(value) for value in self.captured[node.value - 1]]
        self.pointers = (ctypes.c_void_p * len(self.held))(*map(ctypes.addressof, self.held))
        ctypes.c_void_p.from_buffer(about).value = node.value
        ctypes.c_void_p.from_buffer(about, 40).value = ctypes.addressof(self.pointers)

    def cuFuncGetParamInfo(self, function, index, offset, size):
        values = self.captured[function.value - 1]
        if index.value >= len(values):
            return 1
        size._obj.value = len(in_memory(values[index.value]))
        return 0

    def cuGraphExecKernelNodeSetParams_v2(self, made, node, about):
        first = ctypes.c_void_p.from_buffer(about, 40)
        pointers = ctypes.cast(first, ctypes.POINTER(ctypes.c_void_p))
        sizes = [len(in_memory(value)) for value in self.kinds[node.value - 1]]
        read = [ctypes.string_at(pointers[i], size) for i, size in enumerate(sizes)]
        self.execs[node.value] = [
            value if len(value) == 128 else int.from_bytes(value, "little") for value in read
        ]
        return 0

    def cuGraphLaunch(self, made, stream):
        self.num_graph_launches += 1
        self.launches += [tuple(values) for values in self.execs.values()]
        return 0

    def cuGraphExecDestroy(self, made):
        self.execs = {}

    def cuGraphDestroy(self, graph):
        pass


def in_memory(value):
    """Return a parameter as a kernel has it: a map, an address, or a small number."""
    size = 128 if isinstance(value, bytes) else 8 if value >= 1 << 32 else 4
    raw = value if isinstance(value, bytes) else value.to_bytes(size, "little")
    return (ctypes.c_char * size)(*raw)


@pytest.fixture
def driver(monkeypatch):
    fake, made = Driver(), GraphDriver.__new__(GraphDriver)
    made._slow, made.launch = fake, lambda *given: fake.cuGraphLaunch(*given)
    made.set_node = lambda *given: fake.cuGraphExecKernelNodeSetParams_v2(*given)
    monkeypatch.setattr(tape_graph, "graph_driver", lambda: made)
    monkeypatch.setattr(tape_graph, "_GRAPHS", WeakSet())
    launch = Launch(call=fake.run, before=(), after=())
    monkeypatch.setattr("quantdock_triton.tape.bind", lambda *about: launch)
    monkeypatch.setattr(
        "quantdock_triton.tape.expanded",
        lambda descriptor, *about: [descriptor.base.data_ptr().to_bytes(128, "little")],
    )
    return fake


def map_of(start):
    return start.to_bytes(128, "little")


def recorded():
    """Return a tape of two launches, with three names."""
    tape = Tape(3, 64)
    assert tape.add("first", (1, 1, 1), [Place(0, 0), 5, Place(SCRATCH, 0), Place(1, 32)])
    assert tape.add("second", (1, 1, 1), [Place(SCRATCH, 16), 6, Place(2, 0), Place(0, 0)])
    return tape


def test_each_launch_has_the_addresses_of_its_call(driver):
    graph = tape_graph.graph_of(recorded(), [256, 512, 768], 4096)
    for names, scratch in (([256, 512, 768], 4096), ([1024, 512, 768], 4096), ([1, 2, 3], 8192)):
        driver.launches.clear()
        assert graph(names, scratch)
        a, b, c = names
        assert driver.launches == [(a, 5, scratch, b + 32), (scratch + 16, 6, c, a)]
    assert driver.modes == [2, 0] * (len(driver.modes) // 2)


def test_a_tape_becomes_a_graph_after_some_calls_on_the_default_stream(driver):
    tape, names = recorded(), [256, 512, 768]
    for _ in range(CALLS_BEFORE_GRAPH - 1):
        tape(0, names, 4096)
        tape(5, names, 4096)
    assert not driver.execs
    launches = [driver.launches[-4:]]
    for stream in (0, 5, 0):
        driver.launches.clear()
        tape(stream, names, 4096)
        launches.append(driver.launches[:])
    assert driver.execs and driver.num_graph_launches == 2
    assert launches[1] == launches[2] == launches[3] == launches[0][:2]


def test_where_a_graph_fails_the_tape_launches_by_itself_from_then_on(driver):
    tape, names = recorded(), [256, 512, 768]
    for _ in range(CALLS_BEFORE_GRAPH):
        tape(0, names, 4096)
    for refuses in ({SET}, set()):
        driver.refuses = refuses
        driver.launches.clear()
        tape(0, names, 4096)
        assert driver.launches == [(256, 5, 4096, 544), (4112, 6, 768, 256)]
    assert driver.num_graph_launches == 1


def test_one_launch_is_no_graph(driver):
    tape = Tape(1, 0)
    assert tape.add("first", (1, 1, 1), [Place(0, 0), 5, 6, 7])
    for _ in range(CALLS_BEFORE_GRAPH + 2):
        tape(0, [256], 0)
    assert not driver.execs and driver.launches == [(256, 5, 6, 7)] * (CALLS_BEFORE_GRAPH + 2)


def test_there_are_no_more_graphs_than_there_may_be(driver, monkeypatch):
    tape = recorded()
    kept = tape_graph.graph_of(tape, [256, 512, 768], 4096)
    monkeypatch.setattr(tape_graph, "MOST_GRAPHS", len(tape_graph._GRAPHS))
    assert tape_graph.graph_of(recorded(), [256, 512, 768], 4096) is None
    del kept, tape
    assert tape_graph.graph_of(recorded(), [256, 512, 768], 4096) is not None


def test_maps_of_memory_that_was_not_seen_come_from_another_capture(driver):
    tape, described = Tape(2, 64), SimpleNamespace(base=None)
    of_codes = Map(SCRATCH, 32, described, None, 0)
    of_weight = Map(1, 0, described, None, 1)
    assert tape.add("first", (1, 1, 1), [Place(0, 0), Place(SCRATCH, 32)])
    assert tape.add("second", (1, 1, 1), [of_codes, 128, of_weight, 64, Place(0, 16)])
    graph = tape_graph.graph_of(tape, [1 << 40, 2 << 40], 3 << 40)
    captures = []
    for x, weight, scratch in ((1, 2, 3), (1, 4, 3), (5, 2, 3), (5, 4, 6), (5, 2, 6), (1, 2, 3)):
        names, between = [x << 40, weight << 40], scratch << 40
        driver.launches.clear()
        assert graph(names, between)
        first, second = driver.launches
        assert first == (x << 40, between + 32)
        assert second == (map_of(between + 32), 128, map_of(weight << 40), 64, (x << 40) + 16)
        captures.append(driver.num_captures)
    assert captures == [1, 2, 2, 3, 3, 3]


def test_launches_that_look_alike_are_no_graph(driver):
    tape = Tape(1, 64)
    for _ in range(2):
        assert tape.add("same", (1, 1, 1), [Place(0, 0), 5, Place(SCRATCH, 0)])
    assert tape_graph.graph_of(tape, [256], 4096) is None


def test_a_map_that_cannot_be_seen_leaves_the_call_to_the_tape(driver):
    tape = Tape(1, 64)
    assert tape.add("first", (1, 1, 1), [Place(0, 0), 5])
    assert tape.add("second", (1, 1, 1), [Map(0, 0, SimpleNamespace(base=None), None, 0), 5])
    graph = tape_graph.graph_of(tape, [1 << 40], 3 << 40)
    driver.refuses.add("cuStreamBeginCapture_v2")
    assert not graph([2 << 40], 3 << 40) and driver.launches == []
    assert graph([1 << 40], 3 << 40)


def test_large_addresses(driver):
    graph, top = tape_graph.graph_of(recorded(), [256, 512, 768], 4096), (1 << 57) - 512
    assert graph([top, top - 512, top - 1024], top - 4096)
    assert driver.launches[0] == (top, 5, top - 4096, top - 512 + 32)


def test_threads_do_not_launch_each_others_addresses(driver):
    graph = tape_graph.graph_of(recorded(), [256, 512, 768], 4096)
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as pool:
            made = [([256 * i, 512 * i, 768 * i], 1024 * i) for i in range(1, 400)]
            assert all(pool.map(lambda given: graph(*given), made))
    finally:
        sys.setswitchinterval(before)
    pairs = list(zip(driver.launches[::2], driver.launches[1::2], strict=True))
    expected = {(((256 * i), 5, 1024 * i, 512 * i + 32), (1024 * i + 16, 6, 768 * i, 256 * i))
                for i in range(1, 400)}  # fmt: skip
    assert set(pairs) == expected and len(pairs) == 399


@pytest.mark.parametrize(
    "name", ["cuStreamBeginCapture_v2", "cuGraphInstantiateWithFlags", "cuGraphGetNodes"]
)
def test_what_the_driver_refuses_is_no_graph(driver, name):
    driver.refuses.add(name)
    assert tape_graph.graph_of(recorded(), [256, 512, 768], 4096) is None
    assert driver.modes == [2, 0] * (len(driver.modes) // 2) and not driver.is_capturing


def test_a_parameter_that_is_not_found_is_no_graph(driver):
    tape = recorded()
    driver.refuses.add("cuFuncGetParamInfo")  # a driver that does not tell
    assert tape_graph.graph_of(tape, [256, 512, 768], 4096) is None


def test_without_a_driver_there_is_no_graph(driver, monkeypatch):
    monkeypatch.setattr(tape_graph, "graph_driver", lambda: None)
    assert tape_graph.graph_of(recorded(), [256, 512, 768], 4096) is None


def test_where_setting_fails_nothing_is_launched(driver):
    graph = tape_graph.graph_of(recorded(), [256, 512, 768], 4096)
    driver.refuses.add(SET)
    assert not graph([256, 512, 768], 4096) and driver.launches == []


@pytest.mark.parametrize("at_map", [False, True])
def test_a_call_that_is_stopped_leaves_nothing_for_the_next(driver, monkeypatch, at_map):
    tape, copy = Tape(2, 64), ctypes.memmove
    assert tape.add("first", (1, 1, 1), [Place(SCRATCH, 0), 5])
    of_weight = Map(1, 0, SimpleNamespace(base=None), None, 0)
    assert tape.add("second", (1, 1, 1), [of_weight, Place(0, 0)])
    graph = tape_graph.graph_of(tape, [1 << 40, 2 << 40], 3 << 40)
    assert graph([1 << 40, 2 << 40], 3 << 40) and graph([1 << 40, 4 << 40], 3 << 40)

    def stop(*given):
        if at_map:
            copy(*given)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(*((ctypes, "memmove") if at_map else (driver, SET)), stop)
        graph([1 << 40, 2 << 40], 6 << 40)
    driver.launches.clear()
    assert graph([1 << 40, 4 << 40], 6 << 40)
    assert driver.launches == [(6 << 40, 5), (map_of(4 << 40), 1 << 40)]
