"""Small tensors of whole numbers, read without torch."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import save_file

from quantdock.checkpoint import read_header
from quantdock.checkpoint.whole_numbers import read_whole_numbers
from quantdock.errors import CheckpointError

TENSORS = {
    "a.weight_shape": torch.tensor([300, 2**40]),
    "b.weight_shape": torch.tensor([7, -1], dtype=torch.int32),
    "c.scalar": torch.tensor(5),
    "d.weight": torch.ones(2),
    "e.long": torch.zeros(9, dtype=torch.int64),
}


def test_values_are_those_of_the_file(tmp_path):
    save_file(TENSORS, tmp_path / "x.safetensors")
    entries = read_header(tmp_path / "x.safetensors")
    assert {name: read_whole_numbers(entry) for name, entry in entries.items()} == {
        "a.weight_shape": (300, 2**40),
        "b.weight_shape": (7, -1),
        "c.scalar": (5,),
        "d.weight": (),
        "e.long": (),
    }


@pytest.mark.parametrize("size", [None, 10])
def test_a_file_that_changed_is_named(tmp_path, size):
    path = tmp_path / "x.safetensors"
    save_file(TENSORS, path)
    entry = read_header(path)["a.weight_shape"]
    path.unlink() if size is None else path.write_bytes(b"0" * size)
    with pytest.raises(CheckpointError, match=r"a\.weight_shape cannot be read from .*x\.safe"):
        read_whole_numbers(entry)
