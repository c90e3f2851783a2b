"""Stacked experts as one tensor an expert."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import save_file

from quantdock.checkpoint.header import read_header
from quantdock.loading.expert_slices import find_stacked, usual_name
from quantdock.loading.sources import Sources

WEIGHTS = ("gate_up_proj", "down_proj")


def test_each_slice_is_the_experts_own(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    tensors = {
        "experts.gate_up_proj": torch.arange(4 * 6 * 2, dtype=torch.float32).view(4, 6, 2),
        "experts.gate_up_proj_scale_inv": torch.arange(12.0).view(4, 3, 1),
        "experts.down_proj.weight": torch.arange(8, dtype=torch.int8).view(4, 2, 1),
        "experts.gate_up_proj_bias": torch.arange(24.0).view(4, 6),
        "experts.router": torch.zeros(4, 2),
    }
    save_file(tensors, path)
    sources = Sources(read_header(path))
    found = find_stacked(sources.under, "experts", WEIGHTS)
    assert {(s.weight, s.part) for s in found} == {
        ("gate_up_proj", "weight"),
        ("gate_up_proj", "weight_scale_inv"),
        ("gate_up_proj", "bias"),
        ("down_proj", "weight"),
    }
    for stacked in found:
        for expert, entry in enumerate(stacked.slices(4)):
            name = f"experts.{expert}.{stacked.weight}.{stacked.part}"
            sources.add_part(name, entry)
            assert torch.equal(sources.read(name), tensors[entry.name][expert])
    assert sources.left_over() == ["experts.router"]
    assert set(sources.stored("experts.2.gate_up_proj")) == {"weight", "weight_scale_inv", "bias"}


def test_a_tensor_of_another_number_of_experts_has_no_slices(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    scale = torch.tensor([0.5])
    save_file({"experts.w2": torch.zeros(3, 2, 2), "experts.w2_weight_scale": scale}, path)
    sources = Sources(read_header(path))
    weight, one = find_stacked(sources.under, "experts", ("w2",))
    assert len(weight.slices(3)) == 3 and weight.slices(4) == []
    assert [entry.shape for entry in one.slices(4)] == [()] * 4  # a lone scale is everybody's


def test_what_is_not_there_would_be_called_as_what_is(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    save_file({"e.w2": torch.zeros(3, 2), "e.w13.weight": torch.zeros(3, 2)}, path)
    entries = read_header(path)
    told = {
        ("w2", "weight_scale"): "e.w2_scale",
        ("w2", "weight_global_scale"): "e.w2_weight_global_scale",
        ("w2", "g_idx"): "e.w2_g_idx",
    }
    for (weight, part), name in told.items():
        assert usual_name(f"e.0.{weight}", part, {"weight": entries[f"e.{weight}"]}) == name
    dotted = {"weight": entries["e.w13.weight"]}
    assert usual_name("e.0.w13", "weight_scale", dotted) == "e.w13.weight_scale"
    assert usual_name("e.0.w13", "weight_scale", {}) == "e.0.w13.weight_scale"
