"""Experts in one tensor: taken apart by their rows, and whether plain ones are turned."""

from __future__ import annotations

import torch
from safetensors.torch import save_file

from quantdock.checkpoint.header import read_header
from quantdock.convert.stacked import keeps_experts_turned, take_apart
from quantdock.loading.sources import Sources
from quantdock.schemes import LayerFacts

PREFIX = "a.mlp.experts.gate_up_proj"


def test_gate_and_up_have_scale_rows_of_their_own(tmp_path):
    tensors = {
        PREFIX: torch.arange(2 * 8 * 4, dtype=torch.uint8).view(2, 8, 4),
        f"{PREFIX}_scale_inv": torch.arange(4.0).view(2, 2, 1),
        f"{PREFIX}_bias": torch.ones(2, 8),
    }
    save_file(tensors, tmp_path / "model.safetensors")
    sources = Sources(read_header(tmp_path / "model.safetensors"))
    whole, experts = take_apart(sources, LayerFacts(prefix=PREFIX, kind="experts"), 2)
    assert whole.keys() == {"weight", "weight_scale_inv"} and len(experts) == 2
    assert [piece.prefix for piece in experts[1]] == [
        "a.mlp.experts.1.gate_proj",
        "a.mlp.experts.1.up_proj",
    ]
    up = experts[1][1].prefix
    assert torch.equal(sources.read(f"{up}.weight"), tensors[PREFIX][1, 4:])
    assert sources.read(f"{up}.weight_scale_inv").tolist() == [[3.0]]


def test_some_classes_keep_plain_experts_turned():
    assert keeps_experts_turned({"model_type": "gpt_oss"})
    assert keeps_experts_turned({"model_type": "x", "text_config": {"model_type": "aria_text"}})
    assert not keeps_experts_turned({"model_type": "qwen3_moe"})
