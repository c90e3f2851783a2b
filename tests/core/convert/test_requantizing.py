"""fp8 of other floats: values as they were, or how many are not; --exact refuses the latter."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file

from quantdock.convert.conversion import plan_conversion
from quantdock.convert.goals import Integers
from quantdock.errors import ConfigError, MismatchError
from toy_llama import BLOCK, LINEARS, UP, llama, write, write_shards

FIRST, SECOND = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"


def convert(source, target, to, **options):
    return plan_conversion(source, target, to, **options).run()


def decoded(folder, target):
    return load_file(convert(folder, target, "none").target / "model.safetensors")


def same(first, second, tmp_path):
    before, after = decoded(first, tmp_path / "before"), decoded(second, tmp_path / "after")
    assert before.keys() == after.keys()
    for name, tensor in before.items():
        assert torch.equal(tensor, after[name]), name


@pytest.mark.parametrize("to", ["fp8_per_block", "mxfp8"])
@pytest.mark.parametrize("name", ["ct-mxfp4", "quark-mxfp6-e2m3"])
def test_powers_of_two_stay_exact(shared, tmp_path, name, to):
    source = shared / "models" / name
    report = convert(source, tmp_path / "out", to, exact=True)
    assert report.notes[-1] == "exact: all 983,040 values stay as they were"
    same(source, report.target, tmp_path)


def test_values_far_below_the_largest_of_a_block_are_counted(shared, tmp_path):
    source = shared / "models" / "ct-mxfp8"
    report = convert(source, tmp_path / "out", "fp8_per_block")
    assert report.notes[-2].startswith("not exact: ")
    share = float(report.notes[-2].split("(")[1].split(" %")[0])
    assert 0 < share < 0.1
    with pytest.raises(MismatchError, match="is in mxfp8 already"):
        convert(source, tmp_path / "again", "mxfp8")


def test_block_scales_that_are_no_powers_of_two_are_counted(shared, tmp_path):
    source = shared / "models" / "fp8block-128x128"
    report = convert(source, tmp_path / "out", "mxfp8")
    before = decoded(source, tmp_path / "before")
    after = decoded(report.target, tmp_path / "after")
    assert any(not torch.equal(before[name], after[name]) for name in before)
    total, most = report.notes[-2:]
    assert total.startswith("not exact: ") and " of 983,040 values changed (" in total
    assert total.endswith("% of themselves at most") and most.startswith("most in model.layers.")
    with pytest.raises(MismatchError, match="cannot become mxfp8 without changing") as caught:
        convert(source, tmp_path / "exact", "mxfp8", exact=True)
    assert "and 32 more layers" in caught.value.why and "Leave --exact out" in caught.value.todo
    assert not list(tmp_path.glob("exact*"))


def test_a_static_scale_of_inputs_is_left_out_and_said(shared, tmp_path):
    report = convert(shared / "models" / "ct-fp8-static", tmp_path / "out", "fp8_per_channel")
    assert report.notes[-1] == "exact: all 983,040 values stay as they were"
    assert "static scales of inputs are left out: fp8_per_channel computes them" in report.notes
    assert not any("input_scale" in name for name in load_file(report.target / "model.safetensors"))


@pytest.mark.parametrize(
    ("name", "to", "inputs"), [("ct-mxfp4a16", "mxfp4a4", True), ("ct-nvfp4", "nvfp4", False)]
)
def test_inputs_become_what_the_word_says(shared, tmp_path, name, to, inputs):
    source = shared / "models" / name
    report = convert(source, tmp_path / "out", to, exact=True)
    block = json.loads((report.target / "config.json").read_text())["quantization_config"]
    (group,) = block["config_groups"].values()
    assert (group["input_activations"] is not None) is inputs
    assert (
        "static scales of inputs are left out: nvfp4 leaves inputs as they are" in (report.notes)
    ) is not inputs
    same(source, report.target, tmp_path)
    with pytest.raises(MismatchError, match=f"is in {to} already"):
        convert(report.target, tmp_path / "again", to)


def test_the_same_codes_go_into_another_dialect(shared, tmp_path):
    report = convert(shared / "models" / "modelopt-nvfp4-w4a16", tmp_path / "out", "nvfp4")
    (total,) = [note for note in report.notes if note.startswith("not exact")]
    assert float(total.split(" by ")[1].split(" %")[0]) < 2e-5  # a step of f32
    with pytest.raises(MismatchError, match="cannot become nvfp4 without"):
        convert(shared / "models" / "modelopt-nvfp4-w4a16", tmp_path / "x", "nvfp4", exact=True)
    codes = load_file(shared / "models" / "modelopt-nvfp4-w4a16" / "model.safetensors")
    tensors = load_file(report.target / "model.safetensors")
    assert all(
        torch.equal(tensor, codes[name.replace("weight_packed", "weight")])
        for name, tensor in tensors.items()
        if name.endswith("weight_packed")
    )


def test_experts_in_fp4_become_fp8_beside_blocks(shared, tmp_path):
    mixtral = shared / "models" / "bases" / "stories260k-mixtral-d128"
    choices = {"*.self_attn.*": "fp8_per_block"}
    mixed = convert(mixtral, tmp_path / "mixed", "mxfp4", choices=choices).target
    report = convert(mixed, tmp_path / "out", "fp8_per_block", exact=True)
    assert report.notes[-1].startswith("exact: all ") and report.num_layers == 5 * (4 + 4 * 3)
    same(mixed, report.target, tmp_path)


def test_an_interrupted_conversion_counts_what_it_had_written(tmp_path):
    tensors = llama("128x128")
    first = {name: tensor for name, tensor in tensors.items() if name.startswith(UP)}
    rest = {name: tensor for name, tensor in tensors.items() if name not in first}
    source = write(tmp_path / "in", tensors, BLOCK)
    whole = convert(source, tmp_path / "whole", "mxfp8")
    (source / "model.safetensors").unlink()
    write_shards(source, {FIRST: first, SECOND: rest})
    told = []

    def stop(num_bytes):
        told.append(num_bytes)
        if sum(told) > 200_000:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        plan_conversion(source, tmp_path / "out", "mxfp8").run(stop)
    report = convert(source, tmp_path / "out", "mxfp8")
    assert report.num_kept == 1 and report.notes[-2:] == whole.notes[-2:]
    assert report.num_layers == len(LINEARS)


@pytest.mark.parametrize(
    ("name", "to", "text"),
    [
        ("gptq-w8-g128", "fp8_per_channel", "quantizing twice adds the errors of both"),
        ("ct-mxfp8", "mxfp4", "quantizing twice adds the errors of both"),
        ("fp8block-128x128", "fp8_per_block", "is in fp8_per_block already"),
        ("gptoss-mxfp4-even", "mxfp8", "hold all experts of a layer"),
        ("gptoss-mxfp4-even", "mxfp4", "is in mxfp4 already"),
    ],
)
def test_what_is_no_gain_or_has_no_place_is_refused(shared, tmp_path, name, to, text):
    with pytest.raises(MismatchError) as caught:
        convert(shared / "models" / name, tmp_path / "out", to)
    assert text in str(caught.value)


def test_options_that_would_divide_it_are_refused(shared, tmp_path):
    source = shared / "models" / "ct-mxfp8"
    for options in ({"ignore": ["*.q_proj"]}, {"choices": {"*.q_proj": "fp8_per_channel"}}):
        with pytest.raises(MismatchError, match="all of it is converted"):
            convert(source, tmp_path / "out", "fp8_per_channel", **options)
    with pytest.raises(ConfigError, match="--bits 8"):
        convert(source, tmp_path / "out", "fp8_per_block", integers=Integers(bits=8))


@pytest.mark.parametrize(
    ("name", "to"), [("bases/stories260k-d128", "fp8_per_block"), ("ct-mxfp8", "none")]
)
def test_exact_is_refused_where_it_cannot_be_promised(shared, tmp_path, name, to):
    with pytest.raises(ConfigError, match="--exact is nothing that --to"):
        convert(shared / "models" / name, tmp_path / "out", to, exact=True)
