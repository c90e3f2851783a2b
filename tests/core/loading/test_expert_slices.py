"""Stacked experts as one tensor an expert."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import save_file

from quantdock.checkpoint.header import read_header
from quantdock.loading.expert_slices import slice_experts
from quantdock.loading.sources import Sources

WEIGHTS = ("gate_up_proj", "down_proj")


def test_each_slice_is_the_experts_own(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    tensors = {
        "experts.gate_up_proj": torch.arange(4 * 6 * 2, dtype=torch.float32).view(4, 6, 2),
        "experts.gate_up_proj_scale_inv": torch.arange(12.0).view(4, 3, 1),
        "experts.down_proj.weight": torch.arange(8, dtype=torch.int8).view(4, 2, 1),
        "experts.gate_up_proj_bias": torch.zeros(4, 6),
        "experts.router": torch.zeros(4, 2),
    }
    save_file(tensors, path)
    sources = Sources(read_header(path))
    found = list(slice_experts(sources.under, "experts", WEIGHTS, 4))
    assert {(s.weight, s.part) for s in found} == {
        ("gate_up_proj", "weight"),
        ("gate_up_proj", "weight_scale_inv"),
        ("down_proj", "weight"),
    }
    for part in found:
        name = f"experts.{part.expert}.{part.weight}.{part.part}"
        sources.add_part(name, part.entry)
        assert torch.equal(sources.read(name), tensors[part.entry.name][part.expert])
    assert sources.left_over() == ["experts.gate_up_proj_bias", "experts.router"]
    assert set(sources.stored("experts.2.gate_up_proj")) == {"weight", "weight_scale_inv"}


def test_a_tensor_of_another_number_of_experts_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    save_file({"experts.down_proj": torch.zeros(3, 2, 2)}, path)
    assert list(slice_experts(Sources(read_header(path)).under, "experts", WEIGHTS, 4)) == []
