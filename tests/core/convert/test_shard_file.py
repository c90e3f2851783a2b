"""Writing a file: whole under its name or not at all; a finished one is known by its header."""

from __future__ import annotations

import pytest

from quantdock.checkpoint import open_checkpoint
from quantdock.convert.part import copy
from quantdock.convert.shard import lay_out
from quantdock.convert.shard_file import UNFINISHED, is_whole, write_shard
from quantdock.errors import CheckpointError


@pytest.fixture
def shard(plain):
    entries = open_checkpoint(plain).tensors.values()
    return lay_out([copy(entry) for entry in entries], plain, None)[0]


def test_a_written_file_is_whole(shard, tmp_path):
    assert not is_whole(shard, tmp_path)
    write_shard(shard, tmp_path, lambda num_bytes: None)
    assert is_whole(shard, tmp_path)
    assert not list(tmp_path.glob(f"*{UNFINISHED}"))


@pytest.mark.parametrize("damage", ["shorter", "longer", "header"])
def test_a_damaged_file_is_not(shard, tmp_path, damage):
    write_shard(shard, tmp_path, lambda num_bytes: None)
    path = tmp_path / shard.name
    content = bytearray(path.read_bytes())
    if damage == "header":
        content[20] ^= 1
    path.write_bytes({"shorter": content[:-1], "longer": content + b"\0"}.get(damage, content))
    assert not is_whole(shard, tmp_path)


def test_an_interruption_leaves_nothing_under_the_name(shard, tmp_path):
    def stop(num_bytes):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_shard(shard, tmp_path, stop)
    assert not (tmp_path / shard.name).exists()
    assert (tmp_path / f"{shard.name}{UNFINISHED}").exists()


def test_an_input_that_is_cut_short_meanwhile_is_named(shard, plain, tmp_path):
    path = plain / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1000])
    with pytest.raises(CheckpointError, match=r"model\.safetensors ends inside tensor"):
        write_shard(shard, tmp_path, lambda num_bytes: None)
