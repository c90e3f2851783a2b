"""The checkpoint as layers, and what was read of it."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import save_file

from quantdock.checkpoint import read_header
from quantdock.loading.sources import Sources


@pytest.fixture
def sources(tmp_path):
    names = (
        "a.weight",
        "a.weight_scale",
        "a.weight_scale_2",
        "a.k_scale",
        "mtp.fc.weight",
        "mtp.fc.weight_scale",
    )
    save_file({name: torch.ones(2, 2) for name in names}, tmp_path / "model.safetensors")
    return Sources(read_header(tmp_path / "model.safetensors"))


def test_tensors_lie_under_their_layer(sources):
    assert set(sources.under("a")) == {"weight", "weight_scale", "weight_scale_2", "k_scale"}
    assert sources.stored("mtp.fc")["weight"].shape == (2, 2)
    assert sources.under("b") == {}


def test_a_part_may_be_read_as_its_transpose(tmp_path):
    path = tmp_path / "model.safetensors"
    whole = torch.arange(24.0).view(2, 3, 4)
    save_file({"experts.w2": whole}, path)
    sources = Sources(read_header(path))
    entry = sources.tensors["experts.w2"]
    own = entry._replace(shape=(3, 4), start=entry.start + 48)
    sources.add_transposed("experts.1.w2.weight", own)
    assert sources.stored("experts.1.w2")["weight"].shape == (4, 3)
    assert torch.equal(sources.read("experts.1.w2.weight"), whole[1].T)
    part = sources.read("experts.1.w2.weight", region=(slice(1, 3), slice(0, 2)))
    assert torch.equal(part, whole[1].T[1:3, :2])
    assert sources.left_over() == []
