"""Files of experts with tensors too many, too few or unfit: an error that names them, at load."""

from __future__ import annotations

import re

import pytest
import torch

import quantdock
from quantdock.errors import ConfigError, LoadError
from tests.toy_files import copy_checkpoint, edit_config, edit_tensors

CT = "model.layers.1.block_sparse_moe.experts"  # under llm-compressor's names
STACK = "model.layers.1.mlp.experts"
FILES = {"nvfp4": "ct-mixtral-nvfp4a16", "blocks": "fp8block-mixtral", "mxfp4": "gptoss-mxfp4-even"}


def load(folder, quantization=None):
    return quantdock.load(folder, quantization, device="cpu")


@pytest.fixture
def damage(shared, tmp_path):
    """Return a function that writes a checkpoint, changed, and returns what loading it raises."""

    def run(kind, change, quantization=None):
        folder = copy_checkpoint(shared / "models" / FILES[kind], tmp_path / kind)
        edit_tensors(folder, change)
        with pytest.raises((LoadError, ConfigError)) as caught:
            load(folder, quantization)
        return caught.value

    return run


def adding(**tensors):
    return lambda stored: stored.update(tensors)


@pytest.mark.parametrize("quantization", [None, "none"])
@pytest.mark.parametrize(
    "name",
    [
        f"{CT}.1.down_proj.foo_scale",
        f"{CT}.1.down_proj.weight_packed_2",
        f"{CT}.1.down_proj.extra.weight",
        f"{CT}.gate_up_proj_zeros",
        f"{STACK}.gate_up_proj_zeros",
        "model.layers.1.self_attn.q_proj.weight_scale_3",
    ],
)
def test_tensors_that_nothing_takes(damage, name, quantization):
    error = damage("nvfp4", adding(**{name: torch.ones(4)}), quantization)
    assert error.names == (name,)


def renamed(stored, old, new):
    """Store again, under the new name, what is stored under the old."""
    found = {n: t for n, t in stored.items() if n.startswith(old)}
    stored.update({n.replace(old, new): t.clone() for n, t in found.items()})


@pytest.mark.parametrize("kind", ["nvfp4", "blocks"])
def test_an_expert_too_many(damage, kind):
    error = damage(kind, lambda stored: renamed(stored, f"{CT}.3.", f"{CT}.4."))
    assert "stores experts that the model does not have" in str(error)
    assert "the model has experts 0 to 3" in str(error) and len(error.names) == 3
    assert all(name.startswith(f"{CT}.4.") for name in error.names)


def test_an_expert_under_two_names(damage):
    error = damage("blocks", lambda s: renamed(s, f"{CT}.2.w1.", f"{CT}.2.gate_proj."))
    assert re.search(rf"expert 2: {CT}\.2\.\w+ and {CT}\.2\.\w+", str(error))
    error = damage(
        "nvfp4", lambda s: renamed(s, f"{CT}.2.up_proj.weight_sc", f"{CT}.2.w3.weight_sc")
    )
    assert f"{CT}.2.w3" in str(error)


def test_an_expert_too_few(damage):
    def drop(stored):
        for name in [name for name in stored if name.startswith(f"{CT}.2.w3.")]:
            del stored[name]

    assert f"  expert 2: {CT}.2.w3\n" in str(damage("blocks", drop))


def cut(last, size):
    def change(stored):
        for name in [name for name in stored if name.startswith(STACK) and name.endswith(last)]:
            stored[name] = stored[name][:size].clone()

    return change


def test_stacks_of_another_number_of_experts(damage):
    error = damage("mxfp4", cut("down_proj_blocks", 3))
    assert error.names == (f"{STACK}.down_proj_blocks",)
    assert "down_proj_blocks is [3, 128, 4, 16]\n  the model has 4 experts" in str(error)


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("mxfp4", f"{STACK}.down_proj_scales"),
        ("mxfp4", f"{STACK}.gate_up_proj_blocks"),
        ("nvfp4", f"{CT}.2.up_proj.weight_packed"),
        ("blocks", f"{CT}.2.w3.weight"),
    ],
)
@pytest.mark.parametrize("quantization", [None, "none"])
def test_what_is_missing_has_the_name_that_the_file_would_give_it(damage, kind, name, quantization):
    assert name in str(damage(kind, lambda stored: stored.pop(name), quantization))


def test_what_does_not_fit_is_named_as_the_file_does(damage):
    name = f"{STACK}.gate_up_proj_blocks"
    error = damage("mxfp4", lambda stored: stored.update({name: stored[name].flatten(2)}))
    assert error.names == (name,)
    assert "0.gate_up_proj.weight_blocks is [256, 64], not [256, 4, 16], a part of" in str(error)


@pytest.mark.parametrize("quantization", [None, "none"])
@pytest.mark.parametrize(
    ("kind", "last", "shape"),
    [("nvfp4", "down_proj.weight_packed", [1, 128, 128]), ("blocks", "w2.weight", [1, 128, 256])],
)
def test_codes_that_are_no_matrix(damage, kind, last, shape, quantization):
    name = f"{CT}.1.{last}"
    error = damage(kind, lambda s: s.update({name: s[name][None]}), quantization)
    assert f"{name} is {shape}, not" in str(error) or f"{name} has shape {shape}" in str(error)


@pytest.mark.parametrize("kind", ["nvfp4", "blocks"])
def test_a_bias_that_the_model_has_no_place_for(shared, tmp_path, damage, kind):
    name = f"{CT}.1.{'down_proj' if kind == 'nvfp4' else 'w2'}.bias"
    assert damage(kind, adding(**{name: torch.ones(128)})).names == (name,)
    edit_tensors(tmp_path / kind, adding(**{name: torch.zeros(128)}))
    assert load(tmp_path / kind).quantdock_plan.unused == ()


@pytest.mark.parametrize(("byte", "kind"), [(255, "NaN"), (254, "too large for float32")])
def test_exponents_that_no_weight_can_have(damage, byte, kind):
    def change(stored):
        stored[f"{STACK}.down_proj_scales"][2, 3, 1] = byte

    error = damage("mxfp4", change)
    assert error.names == (f"{STACK}.2.down_proj.weight_scales",)
    assert f"1 of 512 {kind}, the first at [3, 1]" in str(error)


def test_blocks_that_a_list_leaves_out_are_read_and_noted(shared, tmp_path):
    folder = copy_checkpoint(shared / "models" / FILES["mxfp4"], tmp_path / "listed")
    edit_config(folder, quantization_config={"quant_method": "mxfp4", "ignore": [STACK]})
    plan = load(folder).quantdock_plan
    assert {layer.decision for layer in plan.layers if layer.kind == "experts"} == {"quantized"}
    assert any(f"ignore[0] = '{STACK}' leaves it out" in note for note in plan.notes)


def test_a_router_in_a_list_is_no_entry_without_a_match(shared):
    plan = load(shared / "models" / FILES["mxfp4"]).quantdock_plan
    assert plan.ignore_unmatched == ()


def test_a_name_that_no_file_has_tells_which_expert(damage):
    name = f"{CT}.1.up_proj.weight_packed"
    plain = torch.zeros(256, 128, dtype=torch.bfloat16)

    def change(stored):
        del stored[name]
        stored[f"{CT}.1.up_proj.weight"] = plain

    assert f"{CT}.1.up_proj" in str(damage("nvfp4", change))


@pytest.mark.parametrize("role", ["w1", "w2"])
def test_plain_experts_of_another_shape(shared, tmp_path, role):
    name = f"{CT}.1.{role}.weight"
    source = shared / "models" / "bases" / "stories260k-mixtral-d128"
    folder = copy_checkpoint(source, tmp_path / "plain")
    edit_tensors(folder, lambda stored: stored.update({name: stored[name][:-1].clone()}))
    with pytest.raises(LoadError) as caught:
        load(folder)
    assert f"{name} is [{255 if role == 'w1' else 127}, " in str(caught.value)


@pytest.mark.parametrize("quantization", [None, "none"])
def test_a_cut_scale_is_not_taken_for_one_of_a_larger_tile(damage, quantization):
    name = f"{CT}.1.w1.weight_scale_inv"
    error = damage("blocks", lambda s: s.update({name: s[name][:1].clone()}), quantization)
    assert f"{CT}.1.w1 is " in str(error) and f"{CT}.0.w1 is " in str(error)


def test_up_alone_makes_no_experts_with_a_gate(damage):
    def drop(stored):
        for name in [name for name in stored if ".w1." in name]:
            del stored[name]

    assert "it has down, up only" in str(damage("blocks", drop))


def test_experts_of_a_layer_that_is_not_built_may_stay_unread(shared, tmp_path):
    """Speculative layers come after the last, and their experts with them."""
    folder = copy_checkpoint(shared / "models" / FILES["blocks"], tmp_path / "more")
    edit_tensors(folder, lambda s: renamed(s, "model.layers.4.", "model.layers.5."))
    plan = load(folder).quantdock_plan
    assert "model.layers.5.block_sparse_moe.experts.3.w1.weight_scale_inv" in plan.unused
