"""Recorded launches are made again with other addresses, or not at all."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from quantdock_triton import raw_launch, recording
from quantdock_triton.launcher import Launcher
from quantdock_triton.raw_launch import Launch
from quantdock_triton.recording import Recorder
from quantdock_triton.tape import SCRATCH, Map, Place, Tape


class Compiled:
    """What Triton makes of a kernel; ``calls`` are the launches past its Python."""

    def __init__(self, run=None):
        self.calls = []
        self.run = run or (lambda *given: self.calls.append(given))
        self.function, self.packed_metadata = 77, (4, 1, 0)

    def __getitem__(self, grid):
        return lambda *arguments: None


class Kernel:
    def __init__(self, compiled):
        self.compiled = compiled

    def __getitem__(self, grid):
        return lambda *arguments, **options: self.compiled


def arguments(call):
    """Return stream and arguments of a launch by Triton's launcher."""
    assert call[4:6] == (77, (4, 1, 0)) and call[6:9] == (None, None, None)
    return call[3], call[9:]


def layer(launchers, x, weight, work=lambda codes: None):
    """Quantize and multiply, as far as launches and memory go."""
    first, second = launchers
    codes = torch.empty(4, 8, dtype=torch.int8)
    scale = torch.empty_strided((4, 1), (1, 4))
    work(codes)
    first("key", (3, 1), x, codes, scale, 8)
    out = torch.empty(2, 5)
    second("key", (7, 2), codes, weight[2:].view(torch.uint8), None, out.view(10), scale, 5)
    return out


def recorded(work=lambda codes: None, compiled=None):
    made = compiled or [Compiled(), Compiled()]
    launchers = [Launcher(Kernel(each), (128, True)) for each in made]
    x, weight = torch.ones(2, 8), torch.ones(5, 8, dtype=torch.int8)
    with Recorder((x, weight, None)) as recorder:
        out = layer(launchers, x, weight, work)
    return made, recorder.tape(out)


def test_a_tape_launches_with_the_addresses_it_is_given():
    made, tape = recorded()
    assert tape.scratch_bytes == 1024
    tape(9, (1000, 2000, 0, 3000), 50_000)
    tape(8, (1000, 4000, 0, 3000), 60_000)
    launches = [[arguments(call) for call in each.calls] for each in made]
    assert launches == [
        [(9, (1000, 50_000, 50_512, 8, 128, True)), (8, (1000, 60_000, 60_512, 8, 128, True))],
        [
            (9, (50_000, 2016, None, 3000, 50_512, 5, 128, True)),
            (8, (60_000, 4016, None, 3000, 60_512, 5, 128, True)),
        ],
    ]
    assert [call[:3] for call in made[1].calls] == [(7, 2, 1)] * 2


@pytest.mark.parametrize(
    "work", [lambda codes: codes.zero_(), lambda codes: torch.zeros(3), lambda codes: codes.sum()]
)
def test_a_call_that_does_anything_else_has_no_tape(work):
    assert recorded(work)[1] is None


def test_memory_that_nobody_named_has_no_tape():
    x, other = torch.ones(2, 8), torch.ones(3)
    launcher = Launcher(Kernel(Compiled()), ())
    with Recorder((x,)) as recorder:
        out = torch.empty(2)
        launcher("key", (1, 1), x, other, out)
    assert recorder.tape(out) is None


def test_what_was_not_compiled_has_no_tape():
    assert recorded(compiled=[None, None])[1] is None


def test_nothing_is_recorded_afterwards():
    with Recorder(()) as recorder:
        pass
    recording.launched(Compiled(), (1, 1, 1), ())
    assert recorder.tape(torch.empty(1)) is None


def launcher_of(launch, **facts):
    """Return an instance of a class that is called as Triton's is."""
    usual = {"global_scratch_size": 0, "profile_scratch_size": 0, "launch_pdl": False}
    made = type("CudaLauncher", (), {})()
    vars(made).update(usual, launch=launch, launch_cooperative_grid=False, **facts)
    return made


def test_the_launch_of_3_6_is_called_as_it_wants(monkeypatch):
    monkeypatch.setattr(raw_launch, "triton_version", lambda: (3, 6))
    calls = []
    launch = raw_launch.bind(Compiled(launcher_of(lambda *g: calls.append(g))), (4, 2, 1), False)
    launch(5, (100, 8))
    nothing = (None, None, None)
    flags = (False, False, None, None)
    assert calls == [(4, 2, 1, 5, 77, *flags, (4, 1, 0), *nothing, 100, 8)]


@pytest.mark.parametrize("version", [(3, 8), (3, 9)])
def test_the_launch_of_later_versions_is_called_as_it_wants(monkeypatch, version):
    calls = []
    utils = SimpleNamespace(launch=lambda *given: calls.append(given))
    driver = SimpleNamespace(active=SimpleNamespace(utils=utils))
    monkeypatch.setattr(raw_launch, "triton_version", lambda: version)
    monkeypatch.setattr(raw_launch, "driver", driver)
    run = launcher_of(None, arg_annotations=[1], kernel_signature=b"s")
    launch = raw_launch.bind(Compiled(run), (4, 2, 1), True)
    launch(5, (100, 8))
    nothing = (None, None, None)
    rest = (False, False, (4, 1, 0), *nothing, None, None, [1], b"s", (100, 8))
    assert calls == [(4, 2, 1, 5, 77, *rest)]


def test_a_kernel_that_wants_memory_goes_through_tritons_launcher(monkeypatch):
    monkeypatch.setattr(raw_launch, "triton_version", lambda: (3, 6))
    run = launcher_of(None, global_scratch_size=16)
    assert raw_launch.bind(Compiled(run), (4, 2, 1), True) is None


def test_a_map_is_made_once_for_an_address(monkeypatch):
    made = []

    def expanded(descriptor, compiled, index):
        made.append(descriptor.base.data_ptr())
        return [f"map of {made[-1]}", 7]

    def launch(*given):
        assert given[:4] == (1, 1, 1, 9)
        calls.append(given[4:])

    monkeypatch.setattr("quantdock_triton.tape.expanded", expanded)
    monkeypatch.setattr(
        "quantdock_triton.tape.bind",
        lambda compiled, grid, has_maps: Launch(call=launch, before=grid, after=()),
    )
    calls, about = [], (SimpleNamespace(base=None), None, 0)
    tape = Tape(2, 64)
    assert tape.add(None, (1, 1, 1), [Map(1, 16, *about), 7, Map(SCRATCH, 8, *about), Place(0, 0)])
    for weight in (100, 100, 200, 100):
        tape(9, (1, weight), 5000)
    assert calls[0] == ("map of 116", 7, "map of 5008", 1)
    assert calls[2] == ("map of 216", 7, "map of 5008", 1)
    assert made == [5008, 116, 216]
