"""Check 5 finds scales of the wrong grid, sizes of another model, and ranks that do not divide."""

from __future__ import annotations

import pytest
import torch

import quantdock
import toy_llama as toy
from examined import noted, statuses, told
from quantdock import ParallelGroup, doctor


def test_a_scale_grid_of_another_shape_is_found(examine):
    def shorten(tensors):
        tensors[f"{toy.DOWN}.weight_scale_inv"] = torch.ones(2, 3)

    report = examine(shorten)
    assert statuses(report)["shapes"] == "fail"
    text = told(report, "shapes")
    assert f"{toy.DOWN}: weight_scale_inv is [2, 3], not [2, 4]." in text
    assert "has 6 elements" in text, "the config's own words follow"
    assert f"{toy.DOWN}: refused for what is stored: see check 5" in noted(report, "dispatch")
    assert statuses(report)["dispatch"] == "pass", "each fault is counted once"
    assert report["numbers"].status == "skip"
    assert report["numbers"].summary.startswith("the model does not load (see check 5)")


def test_a_scale_of_an_impossible_dtype_is_found(examine):
    def retype(tensors):
        scale = tensors[f"{toy.DOWN}.weight_scale_inv"]
        tensors[f"{toy.DOWN}.weight_scale_inv"] = scale.to(torch.int32)

    report = examine(retype, quick=True)
    assert "weight_scale_inv is int32, not float32 or" in told(report, "shapes")


def test_codes_of_another_element_are_found(examine):
    def retype(tensors):
        tensors[f"{toy.DOWN}.weight"] = tensors[f"{toy.DOWN}.weight"].view(torch.int8)

    report = examine(retype, quick=True)
    assert "weight is int8, not float8_e4m3fn or uint8" in told(report, "shapes")


def test_sizes_of_another_config_are_found(examine):
    report = examine(fields={"intermediate_size": 640, "vocab_size": 330})
    assert statuses(report)["shapes"] == "fail"
    text = told(report, "shapes")
    assert "weight is [512, 256], not [640, 256]" in text
    assert f"{toy.DOWN}.weight_scale_inv: weight_scale_inv is [2, 4], not [2, 5]" in text
    assert "weight is [320, 256], not [330, 256]" in text
    quick = examine(fields={"intermediate_size": 640}, quick=True)
    assert quick["shapes"].summary.endswith("sizes of config.json not compared (quick)")


def test_tensors_that_the_model_has_and_the_file_has_not_are_found(examine):
    report = examine(fields={"num_hidden_layers": 2})
    text = told(report, "shapes")
    assert "9 tensors (model.layers.1.self_attn.q_proj.weight" in text
    assert "in no file" in text


def test_a_config_that_makes_no_model_is_found(examine):
    report = examine(fields={"model_type": "no_such_model", "architectures": ["NoSuchModel"]})
    assert "cannot read the model config" in noted(report, "shapes")
    assert statuses(report)["numbers"] == "fail", "where loading says the same"


def test_three_ranks_cannot_divide_what_two_can(examine):
    report = examine(tp=3, quick=True)
    assert statuses(report)["shapes"] == "fail"
    text = told(report, "shapes")
    assert "3 ranks cannot divide the model." in text
    assert f"{toy.DOWN}: 512 columns cannot be divided among 3 ranks" in text
    assert "4 heads cannot be divided among 3 ranks" in text
    assert "Numbers of ranks that divide every layer: 1, 2, 4." in text
    assert report["shapes"].details["tp_sizes"] == [1, 2, 4]
    assert toy.DOWN in report["shapes"].findings[0].names


@pytest.mark.parametrize("quick", [True, False])
def test_ranks_that_cut_blocks_are_noted(examine, quick):
    report = examine(tp=4, quick=quick)
    assert statuses(report)["shapes"] == "pass"
    text = noted(report, "shapes")
    assert "q_proj): parts of 64 rows cut tiles of 128 (weight_scale_inv)" in text
    assert "ranks share such scales" in text
    assert toy.DOWN not in text, "512 columns are four blocks"
    rows = examine(tile="1x*", block=toy.TENSOR, tp=4, quick=True)
    assert "cut tiles" not in noted(rows, "shapes")


@pytest.mark.parametrize("quick", [True, False])
def test_blocks_are_dealt_out_whole_as_loading_does(tmp_path, quick):
    """Five blocks among two ranks: 2 and 3, and not the 2.5 that equal parts would be."""
    tensors = toy.llama("128x128", intermediate=640)
    folder = toy.write(tmp_path / "toy", tensors, toy.BLOCK, intermediate_size=640)
    text = noted(doctor(folder, platform="cpu", dtype="float32", tp=2, quick=quick), "shapes")
    assert toy.DOWN not in text and toy.UP not in text
    rank = ParallelGroup(rank=1, size=2)
    plan = quantdock.load(folder, device="cpu", tp=rank).quantdock_plan
    (down,) = (layer for layer in plan.layers if layer.prefix == toy.DOWN)
    assert down.shard == "columns 256-639 of 640"
