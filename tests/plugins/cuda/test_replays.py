"""Which calls are made again, without a GPU: tensors of the CPU stand for those of GPU -1."""

from __future__ import annotations

import weakref
from types import SimpleNamespace

import pytest
import torch

from quantdock.errors import FormatError
from quantdock_cuda import replays
from quantdock_cuda.replays import ATTEMPTS, MOST_ROWS, Replays
from quantdock_triton.launcher import Launcher
from quantdock_triton.raw_launch import Launch
from quantdock_triton.recording import spoil

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
    spaces = SimpleNamespace(known={CPU}, memory=lambda device, num_bytes: (SCRATCH, None))
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


def test_much_memory_in_between_does_not_stay(gpu, monkeypatch):
    monkeypatch.setattr(replays, "MOST_STAYING", 3 * 128 - 1)
    layer, x, weight = Layer(), torch.ones(3, 128), torch.ones(64, 128)
    layer(x, weight)
    layer(x, weight)
    assert layer.num_runs == 1 and layer.launches[0][12] != SCRATCH


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


@pytest.mark.parametrize("calls, current", [(0, CPU), (1, CPU), (1, 1)])
def test_a_layer_of_elsewhere_is_told(gpu, calls, current):
    layer, x, weight = Layer(), torch.ones(1, 128), torch.ones(64, 128)
    for _ in range(calls):
        layer(x, weight)
    gpu.device = current
    there = SimpleNamespace(get_device=lambda: 2, device="cuda:2")
    with pytest.raises(FormatError, match="tensors on cuda:2 was given x on cuda:-1"):
        layer(x, weight, there) if calls == 0 else layer(x, there)


def test_whoever_listens_to_launches_hears_of_them(gpu, monkeypatch):
    layer, x, weight = Layer(), torch.ones(1, 128), torch.ones(64, 128)
    layer(x, weight)
    monkeypatch.setattr(replays, "is_watched", lambda: True)
    assert layer(x, weight) is None


def test_nothing_of_a_call_is_kept_for_the_next(gpu, monkeypatch):
    """What a graph allocates would be its own for as long as it is kept."""
    layer, x, weight = Layer(), torch.ones(3, 128), torch.ones(64, 128)
    made = weakref.ref(layer(x, weight))
    assert made() is None and layer(x, weight).shape == (3, 64)
    (kept,) = layer.replays._kept.values()
    counts = replays.counters(CPU)
    for allocate in kept[1:]:
        assert allocate.args[0].untyped_storage().data_ptr() == counts.data_ptr()


def test_what_the_copy_engine_reads_is_not_kept_either(gpu, monkeypatch):
    """Neither codes, which a graph may own, nor the weight of a model that is gone."""
    launches = []
    launch = Launch(call=lambda *given: launches.append(given), before=(), after=())
    monkeypatch.setattr("quantdock_triton.tape.bind", lambda *given: launch)
    monkeypatch.setattr(
        "quantdock_triton.recording.expanded", lambda descriptor, *about: ["a map", 128]
    )
    monkeypatch.setattr(
        "quantdock_triton.tape.expanded", lambda descriptor, *about: [descriptor.base.data_ptr()]
    )
    held = []

    def run(x, weight):
        codes = torch.empty(x.numel(), dtype=torch.int8)
        out = torch.empty(x.shape[0], 64)
        described = [SimpleNamespace(base=each, block_shape=[1]) for each in (codes, weight)]
        launcher("key", (2, 1), *described, out)
        held.append(weakref.ref(codes))
        return out

    launcher, calls = Launcher(Compiled(), ()), Replays(run, CPU)
    x, weight = torch.ones(3, 128), torch.ones(64, 128)
    held.append(weakref.ref(weight))
    calls("kind", x, weight)
    del weight
    assert [each() for each in held] == [None, None]
    other = torch.ones(64, 128)
    result = calls("kind", x, other)
    assert launches == [(0, SCRATCH, 128, other.data_ptr(), 128, result.data_ptr())]


def test_two_tensors_at_one_place_are_left_to_the_caller(gpu):
    layer, x = Layer(), torch.ones(64, 128)
    assert layer(x, x) is None and layer.num_runs == 0


def test_the_oldest_record_makes_room(gpu, monkeypatch):
    monkeypatch.setattr(replays, "MOST_KINDS", 2)
    layer, weight = Layer(), torch.ones(64, 128)
    for rows in (1, 2, 3, 2, 1):
        layer(torch.ones(rows, 128), weight)
    assert layer.num_runs == 4


def test_two_threads_may_make_room_at_once(gpu, monkeypatch):
    class Emptied(dict):
        def pop(self, key, *default):
            super().pop(key)  # by the other one
            return super().pop(key, *default)

    monkeypatch.setattr(replays, "MOST_KINDS", 1)
    layer, weight = Layer(), torch.ones(64, 128)
    layer.replays._kept = Emptied()
    assert all(layer(torch.ones(rows, 128), weight) is not None for rows in (1, 2, 2))
    assert layer.num_runs == 2


def test_a_record_that_is_given_up_holds_no_memory(gpu):
    held = []

    def work(codes):
        codes.zero_()
        for _ in range(3):
            held.append(weakref.ref(torch.empty(1 << 10)))

    layer = Layer(work)
    layer(torch.ones(1, 128), torch.ones(64, 128))
    assert len(held) == 3 and not any(tensor() is not None for tensor in held)


class ByLibrary(Layer):
    """Launches what makes codes of x, then multiplies them by torch's product."""

    def run(self, x, weight, scale, padding=0):
        self.num_runs += 1
        codes = torch.empty((x.shape[0] + padding, x.shape[1]), dtype=torch.float8_e4m3fn)
        x_scale = torch.empty((1, 1))
        self.launcher("key", (2, 1), x, codes, x_scale)
        out = torch._scaled_mm(codes, weight.t(), x_scale, scale, out_dtype=torch.bfloat16)
        return out[: x.shape[0]].view(1, x.shape[0], -1)

    def __call__(self, x, weight, scale):
        return self.replays(x.shape, x, weight, scale)


def test_a_product_of_torch_is_made_again_with_the_tensors_of_the_call(gpu, monkeypatch):
    memory = torch.zeros(1 << 20, dtype=torch.uint8)
    monkeypatch.setattr(replays._WORKSPACES, "memory", lambda *asked: (memory.data_ptr(), memory))
    layer, given = ByLibrary(), []
    for turn in range(3):
        x, scale = torch.ones(16, 32) * turn, torch.full((1, 1), 2.0**turn)
        weight = torch.randn(48, 32).to(torch.float8_e4m3fn)
        given.append((x, weight, scale))
        found = layer(*given[-1])
        if turn == 0:
            continue
        # What the launch would have written, before the same call again.
        codes = torch.randn(16, 32).to(torch.float8_e4m3fn)
        start, end = (layer.launches[-1][i] - memory.data_ptr() for i in (10, 11))
        memory[start : start + 512].view(torch.float8_e4m3fn).copy_(codes.view(-1))
        memory[end : end + 4].view(torch.float32).fill_(0.5)
        found = layer(*given[-1])
        expected = codes.float() @ weight.float().t() * 0.5 * scale
        assert found.shape == (1, 16, 48) and found.dtype == torch.bfloat16
        assert torch.allclose(found[0].float(), expected, rtol=2**-7, atol=2**-7)
    assert layer.num_runs == 1 and layer.launches[-1][9] == given[-1][0].data_ptr()


def test_a_product_of_more_rows_than_the_result_has_is_given_up(gpu):
    layer = ByLibrary()
    layer.replays = Replays(lambda *given: layer.run(*given, padding=16), CPU)
    given = torch.ones(3, 32), torch.ones(48, 32).to(torch.float8_e4m3fn), torch.ones(1, 1)
    results = [layer(*given) for _ in range(ATTEMPTS + 1)]
    assert [result is None for result in results] == [False] * ATTEMPTS + [True]


def test_what_launches_past_torch_is_given_up(gpu):
    layer, x, weight = Layer(lambda codes: spoil()), torch.ones(1, 128), torch.ones(64, 128)
    results = [layer(x, weight) for _ in range(ATTEMPTS + 1)]
    assert [result is None for result in results] == [False] * ATTEMPTS + [True]
    assert layer.launches == []


def test_a_call_that_does_more_is_given_up(gpu):
    layer, x, weight = Layer(lambda codes: codes.zero_()), torch.ones(1, 128), torch.ones(64, 128)
    results = [layer(x, weight) for _ in range(ATTEMPTS + 2)]
    assert [result is None for result in results] == [False] * ATTEMPTS + [True] * 2
    assert layer.num_runs == ATTEMPTS and layer.launches == []
