"""gpt-oss on disk: blocks and scales as published files have them, and plain experts again."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file

from quantdock.convert.conversion import plan_conversion
from quantdock.convert.expert_blocks import EXPERT_BLOCKS
from quantdock.errors import ConfigError, NothingQuantizedError
from quantdock.schemes import parse_scheme
from toy_files import edit_config, edit_tensors

MXFP4 = parse_scheme("fp4_e2m1[1x32]:e8m0:even")


def convert(source, target, to="mxfp4", **options):
    return plan_conversion(source, target, to, **options).run()


def test_every_byte_is_that_of_another_tool(shared, tmp_path):
    report = convert(shared / "models" / "bases" / "gptoss-random", tmp_path / "out")
    ours = load_file(report.target / "model.safetensors")
    theirs = load_file(shared / "models" / "gptoss-mxfp4-even" / "model.safetensors")
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(tensor, theirs[name]) for name, tensor in ours.items())
    block = json.loads((report.target / "config.json").read_text())["quantization_config"]
    assert block["quant_method"] == "mxfp4" and "lm_head" in block["modules_to_not_convert"]
    assert report.notes[0] == (
        "written as gpt-oss has it: experts in MXFP4, linear layers as they are"
    )


def test_stacked_experts_are_decoded_as_their_class_keeps_them(shared, tmp_path):
    source = shared / "models" / "gptoss-mxfp4-even"
    decoded = load_file(convert(source, tmp_path / "out", "none").target / "model.safetensors")
    plain = load_file(shared / "models" / "bases" / "gptoss-random" / "model.safetensors")
    assert {n: t.shape for n, t in decoded.items()} == {n: t.shape for n, t in plain.items()}
    again = convert(tmp_path / "out", tmp_path / "again").target
    before, after = (load_file(f / "model.safetensors") for f in (source, again))
    assert all(torch.equal(tensor, after[name]) for name, tensor in before.items())


def test_layers_that_are_ignored_stay_and_all_of_them_are_too_many(shared, tmp_path):
    source = shared / "models" / "bases" / "gptoss-random"
    report = convert(source, tmp_path / "out", ignore=["*.0.mlp.experts.*"])
    names = load_file(report.target / "model.safetensors").keys()
    assert "model.layers.0.mlp.experts.down_proj" in names
    assert "model.layers.1.mlp.experts.down_proj_blocks" in names
    block = json.loads((report.target / "config.json").read_text())["quantization_config"]
    assert "model.layers.0.mlp.experts" in block["modules_to_not_convert"]
    with pytest.raises(NothingQuantizedError, match="no layer of"):
        convert(source, tmp_path / "none", ignore=["*experts*"])
    with pytest.raises(ConfigError, match="--choose has no place"):
        convert(source, tmp_path / "none", choices={"*.q_proj": "mxfp8"})


def test_columns_that_fill_no_group_are_named(shared, tmp_path):
    source = shared / "models" / "bases" / "gptoss-random"
    plain = load_file(source / "model.safetensors")
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "config.json").write_bytes((source / "config.json").read_bytes())
    (tmp_path / "in" / "model.safetensors").write_bytes((source / "model.safetensors").read_bytes())
    name = "model.layers.0.mlp.experts.down_proj"
    edit_tensors(tmp_path / "in", lambda t: t.update({name: plain[name][:, :48].contiguous()}))
    edit_config(tmp_path / "in", intermediate_size=48)
    with pytest.raises(ConfigError, match=rf"{name} do not fit groups of 32\.\s+K=48"):
        convert(tmp_path / "in", tmp_path / "out")


def test_only_stacked_weights_of_experts_have_a_place():
    layers = {f"a.mlp.experts.{e}.gate_up_proj": MXFP4 for e in range(2)}
    assert EXPERT_BLOCKS.why_not(layers) == ()
    (reason,) = EXPERT_BLOCKS.why_not({**layers, "a.self_attn.q_proj": MXFP4})
    assert reason == (
        "mxfp4 files hold gate_up_proj and down_proj of experts, not a.self_attn.q_proj"
    )
