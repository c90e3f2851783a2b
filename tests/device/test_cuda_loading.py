"""On an NVIDIA GPU: what is read of a file is on the device, bit for bit."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import save_file

from quantdock.checkpoint import read_header
from quantdock.loading.sources import Sources
from quantdock.loading.staged import stage_for

pytestmark = pytest.mark.device


def test_many_buffers_of_bytes_and_few(cuda, tmp_path):
    tensors = {
        "a.large": torch.randint(0, 256, (5000, 20001), dtype=torch.uint8),
        "a.wide": torch.randn(700, 3000),
        "a.scalar": torch.tensor(0.5),
    }
    save_file(tensors, tmp_path / "model.safetensors")
    sources = Sources(read_header(tmp_path / "model.safetensors"))
    assert stage_for(torch.device("cuda")) is not None
    for _ in range(3):
        read = {name: sources.read(name, "cuda") for name in tensors}
        rows = sources.read("a.wide", "cuda:0", (slice(300, 650), slice(0, 3000)))
        cut = sources.read("a.wide", "cuda", (slice(0, 700), slice(5, 1000)))
        for name, expected in tensors.items():
            assert read[name].device.type == "cuda" and torch.equal(read[name].cpu(), expected)
        assert torch.equal(rows.cpu(), tensors["a.wide"][300:650])
        assert torch.equal(cut.cpu(), tensors["a.wide"][:, 5:1000])
