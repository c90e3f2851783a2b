"""Which calls are made again, without a GPU: tensors of the CPU stand for those of GPU -1."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from quantdock_cuda import replays
from quantdock_cuda.replays import ATTEMPTS, MOST_ROWS, Replays
from quantdock_triton.launcher import Launcher

CPU = -1
SCRATCH = 1 << 20


@pytest.fixture
def gpu(monkeypatch):
    """Return the current GPU and stream, which a test may change."""
    state = SimpleNamespace(device=CPU, stream=0)
    counts = torch.zeros(64, dtype=torch.int32)
    monkeypatch.setattr(torch._C, "_cuda_getDevice", lambda: state.device, raising=False)
    monkeypatch.setattr(
        torch._C, "_cuda_getCurrentRawStream", lambda device: state.stream, raising=False
    )

    class Counters:
        def __call__(self, device):
            return counts

        def address(self, device, stream):
            return counts.data_ptr()

    monkeypatch.setattr(replays, "counters", Counters())
    spaces = SimpleNamespace(known={CPU}, address=lambda device, num_bytes: SCRATCH)
    monkeypatch.setattr(replays, "_WORKSPACES", spaces)
    return state


class Compiled:
    """What Triton makes of a kernel; ``launches`` are those past its Python."""

    function, packed_metadata = 1, ()

    def __init__(self):
        self.launches = []

    def __getitem__(self, grid):
        return lambda *arguments, **options: self

    def run(self, *given):
        self.launches.append(given)


class Layer:
    """Launches one kernel that reads x and the weight and writes codes and the result."""

    def __init__(self, work=lambda x: None):
        kernel = Compiled()
        self.launches = kernel.launches
        self.num_runs, self.work = 0, work
        self.launcher = Launcher(kernel, (True,))
        self.replays = Replays(self.run, CPU)

    def run(self, x, weight, bias):
        self.num_runs += 1
        codes = torch.empty(x.numel(), dtype=torch.int8)
        self.work(codes)
        out = torch.empty((*x.shape[:-1], 64), dtype=x.dtype)
        self.launcher("key", (2, 1), x, weight, bias, codes, out.view(-1), 7)
        return out

    def __call__(self, x, weight, bias=None):
        return self.replays((x.shape, bias is None), x, weight, bias)


def test_the_next_call_launches_with_its_own_addresses(gpu):
    layer, weight = Layer(), torch.ones(64, 128)
    assert layer(torch.ones(2, 3, 128), weight).shape == (2, 3, 64)
    x, other = torch.ones(2, 3, 128), torch.ones(64, 128)
    result = layer(x, other)
    assert layer.num_runs == 1
    assert (result.shape, result.dtype, result.is_contiguous()) == ((2, 3, 64), x.dtype, True)
    expected = (x.data_ptr(), other.data_ptr(), None, SCRATCH, result.data_ptr(), 7, True)
    assert layer.launches[0][3] == 0 and layer.launches[0][9:] == expected
    gpu.stream = 5
    layer(x, other)
    assert layer.launches[1][3] == 5 and layer.launches[1][12] != SCRATCH


def test_calls_that_differ_are_recorded_for_themselves(gpu):
    layer, weight, bias = Layer(), torch.ones(64, 128), torch.ones(64)
    for x in (torch.ones(1, 128), torch.ones(2, 128)):
        for added in (None, bias):
            for _ in range(3):
                layer(x, weight, added)
    assert layer.num_runs == 4 and len(layer.launches) == 8


@pytest.mark.parametrize(
    "x",
    [
        torch.ones(4, 256)[:, ::2],
        torch.ones(1, 129)[:, 1:],
        torch.ones(MOST_ROWS + 1, 128),
        torch.ones(0, 128),
    ],
    ids=["strided", "unaligned", "many rows", "empty"],
)
def test_other_inputs_are_left_to_the_caller(gpu, x):
    layer = Layer()
    layer(torch.ones(*x.shape), torch.ones(64, 128))
    assert layer(x, torch.ones(64, 128)) is None


def test_with_another_current_gpu_it_is_left_to_the_caller(gpu):
    layer, x, weight = Layer(), torch.ones(1, 128), torch.ones(64, 128)
    layer(x, weight)
    gpu.device = 1
    assert layer(x, weight) is None


def test_whoever_listens_to_launches_hears_of_them(gpu, monkeypatch):
    layer, x, weight = Layer(), torch.ones(1, 128), torch.ones(64, 128)
    layer(x, weight)
    monkeypatch.setattr(replays, "is_watched", lambda: True)
    assert layer(x, weight) is None


def test_a_call_that_does_more_is_given_up(gpu):
    layer, x, weight = Layer(lambda codes: codes.zero_()), torch.ones(1, 128), torch.ones(64, 128)
    results = [layer(x, weight) for _ in range(ATTEMPTS + 2)]
    assert [result is None for result in results] == [False] * ATTEMPTS + [True] * 2
    assert layer.num_runs == ATTEMPTS and layer.launches == []
