"""Scales of experts under another name of their weight: moved where they are needed, only there."""

from __future__ import annotations

from quantdock.checkpoint.expert_scales import homes

STEM = "model.layers.3.mlp.experts.7"


def test_each_goes_to_its_weight() -> None:
    names = [f"{STEM}.{role}_proj.weight" for role in ("gate", "down", "up")]
    names += [f"{STEM}.{role}.input_scale" for role in ("w1", "w2", "w3")]
    assert homes(names) == {
        f"{STEM}.w1.input_scale": f"{STEM}.gate_proj",
        f"{STEM}.w2.input_scale": f"{STEM}.down_proj",
        f"{STEM}.w3.input_scale": f"{STEM}.up_proj",
    }


def test_what_has_a_weight_or_a_scale_of_its_own_stays() -> None:
    assert homes([f"{STEM}.w1.weight", f"{STEM}.w1.input_scale"]) == {}
    own = [f"{STEM}.gate_proj.weight", f"{STEM}.gate_proj.input_scale"]
    assert homes([*own, f"{STEM}.w1.input_scale"]) == {}
    other = f"{STEM.replace('.7', '.8')}.w1.input_scale"
    assert homes([f"{STEM}.gate_proj.weight", other]) == {}
    assert homes(["model.mlp.gate_proj.weight", "model.mlp.w1.input_scale"]) == {}
