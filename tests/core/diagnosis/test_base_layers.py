"""The 16-bit checkpoint beside a quantized one."""

from __future__ import annotations

import torch

import toy_llama as toy
from quantdock.checkpoint import open_checkpoint
from quantdock.diagnosis.base_layers import BaseLayers
from quantdock.loading.sources import Sources


def test_weights_are_found_whatever_wraps_the_model(tmp_path):
    tensors = toy.llama()
    base = BaseLayers(toy.write(tmp_path / "base", tensors, None))
    for prefix in (toy.Q, toy.Q.removeprefix("model."), f"model.language_model.{toy.Q[6:]}"):
        assert base.shape(prefix) == (256, 256)
        assert torch.equal(base.read(prefix), tensors[f"{toy.Q}.weight"])
    assert base.shape("model.layers.1.self_attn.q_proj") is None


def test_only_vectors_that_differ_have_moved(tmp_path):
    tensors = toy.llama()
    base = BaseLayers(toy.write(tmp_path / "base", tensors, None))
    norm = f"{toy.LAYER}.input_layernorm.weight"
    changed = {
        **tensors,
        norm: tensors[norm] * 2,
        f"{toy.Q}.weight": tensors[f"{toy.Q}.weight"] * 2,
    }
    folder = toy.write(tmp_path / "changed", changed, None)
    assert base.moved(Sources(open_checkpoint(folder).tensors)) == [norm]
    same = toy.write(tmp_path / "same", {k: v.float() for k, v in tensors.items()}, None)
    assert base.moved(Sources(open_checkpoint(same).tensors)) == []
