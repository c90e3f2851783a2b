"""What is kept of a GPU, without one: memory of the CPU stands for its own."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
import torch

from quantdock_cuda import device
from quantdock_cuda.device import Counters


@pytest.fixture
def gpu(monkeypatch):
    """Return the current stream, whether it is captured, and which threads asked for memory."""
    state = SimpleNamespace(stream=0, captured=False, threads=[])
    zeros = torch.zeros

    def on_the_cpu(*shape, **options):
        state.threads.append(threading.get_ident())
        return zeros(*shape, **{**options, "device": "cpu"})

    monkeypatch.setattr(torch, "zeros", on_the_cpu)
    monkeypatch.setattr(
        torch._C, "_cuda_getCurrentRawStream", lambda index: state.stream, raising=False
    )
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: state.captured)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda index: None)
    return state


def test_counters_are_not_of_the_memory_that_the_calling_thread_gives_to_a_graph(gpu):
    counters = Counters()
    assert counters(0) is not None
    assert gpu.threads and threading.get_ident() not in gpu.threads


def test_each_stream_has_its_own_counters_of_one_allocation(gpu):
    counters, found = Counters(), []
    for gpu.stream in (0, 8, 0):
        found.append(counters(0))
        assert counters.address(0, gpu.stream) == found[-1].data_ptr()
    assert len(gpu.threads) == 1
    assert found[0].data_ptr() == found[2].data_ptr() != found[1].data_ptr()


def test_a_stream_that_is_captured_gets_those_that_are_there_already(gpu):
    counters, gpu.captured = Counters(), True
    assert counters(0) is None and not gpu.threads
    gpu.captured = False
    counters(0)
    gpu.captured, gpu.stream = True, 8
    assert counters(0) is not None


def test_no_two_streams_share_counters(gpu, monkeypatch):
    """Sums that both divide at once would be those of neither."""
    monkeypatch.setattr(device, "_NUM_STREAMS", 1)
    counters = Counters()
    assert counters.slots(0) is not None
    gpu.stream = 8
    for _ in range(2):
        assert counters(0) is counters.slots(0) is None and counters.address(0, 8) == 0
    gpu.stream = 0
    assert counters(0) is not None


def test_threads_do_not_take_the_same_counters(gpu, monkeypatch):
    class Slow(dict):
        def __setitem__(self, key, value):
            time.sleep(0.05)
            super().__setitem__(key, value)

    own = threading.local()
    monkeypatch.setattr(
        torch._C, "_cuda_getCurrentRawStream", lambda index: own.stream, raising=False
    )
    counters = Counters()

    def take(stream):
        own.stream = stream
        return counters(0).data_ptr(), counters.address(0, stream)

    take(0)
    counters._of_stream = Slow(counters._of_stream)
    with ThreadPoolExecutor(2) as pool:
        (first, at), (second, other) = pool.map(take, (8, 16))
    assert (first, second) == (at, other) and first != second
