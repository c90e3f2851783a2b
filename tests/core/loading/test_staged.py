"""Bytes on their way to an accelerator; here to the CPU, through buffers of ordinary memory."""

from __future__ import annotations

import os
from threading import Event as Event_
from threading import Lock, Timer

import pytest
import torch
from safetensors.torch import save_file

from quantdock.checkpoint import read_header
from quantdock.errors import CheckpointError
from quantdock.loading import reader, sources, staged
from quantdock.loading.reader import read_tensor
from quantdock.loading.sources import Sources

CPU = torch.device("cpu")
TENSORS = {
    "a.codes": torch.arange(24, dtype=torch.uint8).view(torch.float8_e4m3fn).reshape(4, 6),
    "a.wide": torch.randn(3, 5),
    "a.half": torch.randn(7).bfloat16(),
    "a.scalar": torch.tensor(0.5),
    "a.none": torch.empty(0, 8),
}


class LateCopies:
    """Copies to a device that are done no sooner than someone waits for them."""

    def __init__(self):
        self.asked, self.num_done, self.lock = [], 0, Lock()

    def do(self, count):
        with self.lock:
            for target, values in self.asked[self.num_done : count]:
                target[:] = values
            self.num_done = max(self.num_done, count)


class Event:
    """After the copies that were asked for so far."""

    def __init__(self, copies):
        self._copies, self._count = copies, len(copies.asked)

    def synchronize(self):
        self._copies.do(self._count)


@pytest.fixture
def copies(monkeypatch):
    """Put the CPU in the place of an accelerator whose copies are late."""
    late, plain = LateCopies(), torch.Tensor.copy_

    def copy(target, values, non_blocking=False):
        if not non_blocking:
            return plain(target, values)
        late.asked.append((target, values))
        return target

    monkeypatch.setattr(torch.Tensor, "copy_", copy)
    monkeypatch.setattr(staged, "_locked", lambda size: torch.empty(size, dtype=torch.uint8))
    monkeypatch.setattr(staged, "_mark", lambda device: Event(late))
    return late


@pytest.fixture
def entries(tmp_path):
    save_file(TENSORS, tmp_path / "model.safetensors")
    return read_header(tmp_path / "model.safetensors")


@pytest.mark.parametrize("buffer_bytes", [16, 1 << 20])
def test_bits_dtype_and_shape_are_the_files(entries, copies, monkeypatch, buffer_bytes):
    monkeypatch.setattr(staged, "_BUFFER_BYTES", buffer_bytes)
    monkeypatch.setattr(reader, "_read_bytes", None)
    stage = staged.Stage(CPU)
    read = [(name, read_tensor(entries[name], stage=stage)) for name in [*TENSORS] * 2]
    part = read_tensor(entries["a.wide"], region=(slice(1, 3), slice(0, 5)), stage=stage)
    copies.do(len(copies.asked))
    for name, tensor in read:
        expected = TENSORS[name]
        assert tensor.dtype == expected.dtype and tensor.shape == expected.shape
        found, wanted = (t.reshape(-1).view(torch.uint8) for t in (tensor, expected))
        assert torch.equal(found, wanted)
    assert torch.equal(part, TENSORS["a.wide"][1:3])


def test_no_buffer_is_filled_before_what_it_held_is_sent(copies, monkeypatch, tmp_path):
    monkeypatch.setattr(staged, "_BUFFER_BYTES", 64)
    file, content = tmp_path / "file", os.urandom(20_000)
    file.write_bytes(content)
    stage = staged.Stage(CPU)
    pieces = [(97 * turn, 1 + 61 * turn % 900) for turn in range(180)]
    read = [stage.read(file, offset, size) for offset, size in pieces]
    assert 0 < copies.num_done < len(copies.asked)
    copies.do(len(copies.asked))
    for (tensor, count), (offset, size) in zip(read, pieces, strict=True):
        assert count == size and bytes(tensor.numpy()) == content[offset : offset + size]
    assert stage.read(file, 19_900, 500)[1] == 100
    assert stage.read(file, 30_000, 500)[1] == 0


def test_a_piece_that_cannot_be_read_leaves_nothing_behind(copies, monkeypatch, tmp_path):
    monkeypatch.setattr(staged, "_BUFFER_BYTES", 64)
    for name in "ab":
        (tmp_path / name).write_bytes(name.encode() * 4096)
    fill, begun, go_on = staged.Stage._fill, Event_(), Event_()

    def slow(self, turn, file, offset, size):
        if file.name == "a" and offset == 0:
            begun.wait(10)
            Timer(0.05, go_on.set).start()
            raise OSError("no disk")
        if file.name == "a" and offset == 64:
            begun.set()
            go_on.wait(10)
        return fill(self, turn, file, offset, size)

    monkeypatch.setattr(staged.Stage, "_fill", slow)
    stage = staged.Stage(CPU)
    with pytest.raises(OSError, match="no disk"):
        stage.read(tmp_path / "a", 0, 1024)
    assert go_on.is_set()
    read = [stage.read(tmp_path / "b", 0, 64)[0] for _ in range(9)]
    copies.do(len(copies.asked))
    assert all(bytes(values.numpy()) == b"b" * 64 for values in read)


def test_a_file_that_shrank(entries, copies):
    path = entries["a.wide"].file
    path.write_bytes(path.read_bytes()[:-8])
    with pytest.raises(CheckpointError, match="ends inside tensor"):
        for entry in entries.values():
            read_tensor(entry, stage=staged.Stage(CPU))


def test_a_device_has_one_stage_that_reads_go_through(entries, copies, monkeypatch):
    made = []

    def stage_for(device):
        made.append(device)
        return staged.Stage(device)

    monkeypatch.setattr(sources, "stage_for", stage_for)
    monkeypatch.setattr(reader, "_read_bytes", None)
    read = Sources(entries)
    tensors = [read.read("a.wide", device) for device in ("cpu", CPU, "cpu")]
    copies.do(len(copies.asked))
    assert made == [CPU] and all(torch.equal(t, TENSORS["a.wide"]) for t in tensors)


def test_a_cpu_has_no_stage_and_asks_no_accelerator(monkeypatch):
    monkeypatch.setattr(torch.accelerator, "is_available", None)
    monkeypatch.setattr(torch.cuda, "is_available", None)
    assert staged.stage_for(CPU) is None


def test_memory_that_cannot_be_locked_is_done_without(monkeypatch):
    def locked(size):
        raise RuntimeError("cannot lock memory")

    accelerator = torch.device("cpu")
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: accelerator)
    monkeypatch.setattr(staged, "_locked", locked)
    assert staged.stage_for(CPU) is None
