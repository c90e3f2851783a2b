"""Moves between dialects: the same weights bit for bit, or an error that says why not."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file

import plain_decoding
from quantdock.convert.conversion import plan_conversion
from quantdock.convert.goals import Integers
from quantdock.errors import ConfigError, MismatchError
from toy_files import edit_config, edit_tensors
from toy_llama import BLOCK, DOWN, LINEARS, UP, llama, write, write_shards

FIRST, SECOND = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"


def move(source, target, to, **options):
    return plan_conversion(source, target, to, **options).run()


def dequantized(folder):
    """Return every layer's weight in float32, read by plain formulas."""
    block = json.loads((folder / "config.json").read_text())["quantization_config"]
    tensors = load_file(folder / "model.safetensors")
    layers: dict[str, dict[str, torch.Tensor]] = {}
    for name, tensor in tensors.items():
        prefix, _, last = name.rpartition(".")
        layers.setdefault(prefix, {})[last] = tensor
    return {
        prefix: _decoded(layer, block)
        for prefix, layer in layers.items()
        if {"qweight", "weight_packed"} & layer.keys()
    }


def _decoded(layer, block):
    method = block["quant_method"]
    if method == "compressed-tensors":
        (group,) = block["config_groups"].values()
        args = group["weights"]
        return plain_decoding.compressed_tensors(layer, args["num_bits"], args["group_size"])
    if method == "awq":
        return plain_decoding.awq(layer, block["group_size"])
    v2 = block.get("checkpoint_format") == "gptq_v2"
    return plain_decoding.gptq(layer, block["bits"], v2)


def same(first, second):
    before, after = dequantized(first), dequantized(second)
    assert before.keys() == after.keys() and len(before) == 35
    for name, weight in before.items():
        assert torch.equal(weight, after[name]), name


@pytest.mark.parametrize(
    ("name", "to"),
    [
        ("gptq-w4-g32-asym-v2", "awq"),
        ("gptq-w4-g32-asym-v2", "compressed-tensors"),
        ("gptq-w4-g64-asym-v1", "compressed-tensors"),
        ("gptq-w8-g128", "compressed-tensors"),
        ("gptq-w4-g64-desc", "compressed-tensors"),
        ("awq-w4-g32", "gptq"),
        ("awq-w4-g32", "compressed-tensors"),
        ("awq-autoawq-g128-clip", "gptq"),
        ("ct-w4a16-g128", "gptq"),
        ("ct-w4a16-g128", "awq"),
        ("ct-w4a16-asym-g128", "gptq"),
        ("ct-w4a16-asym-g128", "awq"),
    ],
)
def test_weights_are_bit_equal_there_and_back(shared, tmp_path, name, to):
    source = shared / "models" / name
    report = move(source, tmp_path / "out", to)
    same(source, report.target)
    assert report.num_layers == 35
    assert report.notes[-1].endswith(f"to {to}, nothing rounded")
    home = name.split("-")[0].replace("ct", "compressed-tensors")
    back = move(report.target, tmp_path / "back", home).target
    same(source, back)


@pytest.mark.parametrize("name", ["gptq-w4-g32-asym-v2", "awq-w4-g32", "ct-w4a16-asym-g128"])
def test_scales_keep_their_dtype_and_all_else_is_copied(shared, tmp_path, name):
    source = shared / "models" / name
    to = "awq" if name.startswith("gptq") else "gptq"
    before = load_file(source / "model.safetensors")
    after = load_file(move(source, tmp_path / "out", to).target / "model.safetensors")
    scale = "weight_scale" if name.startswith("ct") else "scales"
    prefix = "model.layers.0.mlp.down_proj"
    assert after[f"{prefix}.scales"].dtype == before[f"{prefix}.{scale}"].dtype
    plain = {n for n in before if not n.startswith("model.layers.") or "norm" in n}
    assert plain <= after.keys()
    for other in plain:
        assert torch.equal(before[other].view(torch.uint8), after[other].view(torch.uint8))
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    theirs = json.loads((source / "config.json").read_text())
    assert config.pop("quantization_config")["quant_method"] == to
    theirs.pop("quantization_config")
    assert config == theirs


def test_an_index_that_moves_no_column_is_no_act_order(shared, tmp_path):
    folder = move(shared / "models" / "awq-w4-g32", tmp_path / "gptq", "gptq").target
    block = json.loads((folder / "config.json").read_text())["quantization_config"]
    edit_config(folder, quantization_config={**block, "desc_act": True})
    same(folder, move(folder, tmp_path / "awq", "awq").target)


def test_who_refuses_act_order_is_told(shared, tmp_path):
    source = shared / "models" / "gptq-w4-g64-desc"
    (warning,) = plan_conversion(source, tmp_path / "out", "compressed-tensors").work.warnings
    assert (
        warning.startswith("35 layers are in act-order, such as ")
        and "refuse actorder='group'" in warning
    )


@pytest.mark.parametrize(
    ("name", "word"), [("modelopt-int4-awq", "w4a16"), ("modelopt-int8-sq", "w8a8")]
)
def test_what_cannot_be_moved_is_made_anew_with_as_many_bits(shared, tmp_path, name, word):
    with pytest.raises(MismatchError, match="its inputs are multiplied first") as caught:
        move(shared / "models" / name, tmp_path / "out", "compressed-tensors")
    told = f"Decode it with --to none, and quantize the result with --to {word}."
    assert caught.value.todo == told


def test_act_order_has_no_place_in_awq(shared, tmp_path):
    with pytest.raises(MismatchError) as caught:
        move(shared / "models" / "gptq-w4-g64-desc", tmp_path / "out", "awq")
    text = str(caught.value)
    assert text.startswith("awq cannot hold the codes of this checkpoint as they are.")
    assert "its groups are in act-order" in text
    assert caught.value.todo == (
        "Name a dialect that can: --to compressed-tensors. Or decode it with --to none, and "
        "quantize the result with --to awq."
    )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "to", "text"),
    [
        ("gptq-w8-g128", "awq", "awq has no words for int8"),
        ("gptq-w4-g64-asym-v1", "w8a8_int8", "w8a8_int8 cannot say that"),
        ("ct-w8a8-int8", "gptq", "its inputs are quantized"),
    ],
)
def test_codes_without_a_place_are_refused_with_the_reason(shared, tmp_path, name, to, text):
    with pytest.raises(MismatchError, match="cannot hold the codes") as caught:
        move(shared / "models" / name, tmp_path / "out", to)
    assert text in str(caught.value)


@pytest.mark.parametrize(
    ("name", "to"),
    [
        ("ct-mxfp4", "quark"),
        ("ct-mxfp4a16", "quark"),
        ("ct-nvfp4", "modelopt"),
        ("ct-nvfp4a16", "modelopt"),
        ("quark-mxfp6-e2m3", "compressed-tensors"),
    ],
)
def test_fp4_and_fp6_move_where_they_have_words(shared, tmp_path, name, to):
    source = shared / "models" / name
    report = move(source, tmp_path / "out", to)
    assert report.notes[-1].endswith(f"to {to}, nothing rounded")
    home = "quark" if name.startswith("quark") else "compressed-tensors"
    back = move(report.target, tmp_path / "back", home).target
    before, after = (
        load_file(move(f, tmp_path / f"{f.name}-plain", "none").target / "model.safetensors")
        for f in (source, back)
    )
    assert before.keys() == after.keys()
    assert all(torch.equal(before[key], after[key]) for key in before)


@pytest.mark.parametrize(
    ("name", "to", "why"),
    [
        ("ct-mxfp4", "gptq", "gptq cannot say that"),
        ("modelopt-nvfp4-w4a16", "quark", "quark has no words for fp4_e2m1[1x16]"),
        ("quark-mxfp6-e3m2", "compressed-tensors", "cannot say that"),
    ],
)
def test_fp4_and_fp6_without_words_are_told_to_be_decoded(shared, tmp_path, name, to, why):
    with pytest.raises(MismatchError, match="cannot hold the codes") as caught:
        move(shared / "models" / name, tmp_path / "out", to)
    assert "ecode it with --to none" in caught.value.todo and why in str(caught.value)


def test_reasons_name_only_layers_that_are_refused(shared, tmp_path):
    with pytest.raises(MismatchError) as caught:
        move(shared / "models" / "modelopt-int4-awq", tmp_path / "out", "gptq")
    assert "o_proj: its inputs are multiplied first" in str(caught.value)
    assert "v_proj" not in str(caught.value) and "a scale serves" not in str(caught.value)


def test_int8_moves_between_its_dialects(shared, tmp_path):
    source = shared / "models" / "ct-w8a8-int8"
    target = move(source, tmp_path / "out", "w8a8_int8").target
    before, after = (load_file(f / "model.safetensors") for f in (source, target))
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    back = move(target, tmp_path / "back", "compressed-tensors").target
    assert (back / "model.safetensors").read_bytes() == (target / "model.safetensors").read_bytes()


def test_blocks_of_fp8_move_into_compressed_tensors(tmp_path):
    source = write(tmp_path / "in", llama("128x128"), BLOCK)
    report = move(source, tmp_path / "out", "compressed-tensors")
    before, after = (load_file(f / "model.safetensors") for f in (source, report.target))
    for name in LINEARS:
        assert torch.equal(
            before[f"{name}.weight"].view(torch.uint8), after[f"{name}.weight"].view(torch.uint8)
        )
        assert torch.equal(before[f"{name}.weight_scale_inv"], after[f"{name}.weight_scale"])


def test_only_dialects_are_moved_to_and_without_options(shared, tmp_path):
    source = shared / "models" / "awq-w4-g32"
    for to in ("w4a16", "mxfp8"):
        with pytest.raises(MismatchError, match="is quantized already") as caught:
            move(source, tmp_path / "out", to)
        assert "as they are: --to gptq or compressed-tensors. Or decode" in caught.value.todo
    for options in ({"ignore": ["*.q_proj"]}, {"integers": Integers(bits=4)}):
        with pytest.raises(MismatchError, match="all of it is converted"):
            move(source, tmp_path / "out", "gptq", **options)
    with pytest.raises(MismatchError, match="is in awq already"):
        move(source, tmp_path / "out", "awq")


def test_layers_that_the_packing_does_not_fit_are_named(plain, tmp_path):
    target = (
        plan_conversion(
            plain, tmp_path / "ct", "compressed-tensors", integers=Integers(group_size=-1)
        )
        .run()
        .target
    )
    narrow = {
        f"{UP}.weight_packed": slice(0, 510),
        f"{UP}.weight_scale": slice(0, 510),
    }

    def cut(tensors):
        tensors.update({name: tensors[name][part].clone() for name, part in narrow.items()})
        tensors[f"{UP}.weight_shape"] = torch.tensor([510, 256])

    edit_tensors(target, cut)
    with pytest.raises(ConfigError, match=rf"{UP}: N=510 is no multiple of 8") as caught:
        move(target, tmp_path / "out", "gptq")
    assert caught.value.facts["names"] == (UP,) and DOWN not in str(caught.value)


def test_a_layer_in_several_files_is_moved_and_an_interrupted_move_goes_on(plain, tmp_path):
    source = move(plain, tmp_path / "in", "gptq").target
    tensors = load_file(source / "model.safetensors")
    codes = {name: t for name, t in tensors.items() if name.endswith("qweight")}
    rest = {name: t for name, t in tensors.items() if name not in codes}
    (source / "model.safetensors").unlink()
    write_shards(source, {FIRST: codes, SECOND: rest})
    whole = move(source, tmp_path / "whole", "awq").target
    told = []

    def stop(num_bytes):
        told.append(num_bytes)
        if len(told) == 9:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        plan_conversion(source, tmp_path / "out", "awq").run(stop)
    assert not (tmp_path / "out").exists()
    report = move(source, tmp_path / "out", "awq")
    assert report.num_kept == 1
    assert {p.name: p.read_bytes() for p in report.target.iterdir()} == {
        p.name: p.read_bytes() for p in whole.iterdir()
    }
    assert sum(told) <= plan_conversion(source, tmp_path / "x", "awq").num_bytes
