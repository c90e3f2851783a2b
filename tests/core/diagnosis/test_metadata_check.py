"""Check 2 finds settings that are missing, differ, or cannot be, and files that are damaged."""

from __future__ import annotations

import json

import toy_llama as toy
from examined import statuses, told
from quantdock import doctor


def test_two_sources_that_differ_are_found(examine, tmp_path):
    toy.write(tmp_path / "toy", {}, None)
    side = {"quant_method": "fp8", "weight_block_size": [64, 64], "activation_scheme": "dynamic"}
    (tmp_path / "toy" / "quantization_config.json").write_text(json.dumps(side))
    report = examine(quick=True)
    assert report["metadata"].status == "warn"
    text = told(report, "metadata")
    assert "config.json: quantization_config (used) and quantization_config.json differ" in text
    assert "weight_block_size is [128, 128] and [64, 64]" in text


def test_quantized_tensors_without_settings_are_found(examine):
    report = examine(block=None)
    assert statuses(report)["metadata"] == "fail"
    assert "nothing says how it is quantized" in told(report, "metadata")
    assert f"{toy.DOWN}.weight" in told(report, "metadata")


def test_an_impossible_setting_is_found(examine):
    report = examine(block={**toy.BLOCK, "activation_scheme": "sometimes"})
    assert statuses(report)["metadata"] == "fail"
    assert "activation_scheme" in told(report, "metadata")
    assert "'sometimes'" in told(report, "metadata")
    assert statuses(report)["dispatch"] == "skip"
    assert report["dispatch"].summary.endswith("(check 2)")


def test_a_block_without_a_method_is_found(examine):
    report = examine(block={"weight_block_size": [128, 128]})
    assert statuses(report)["name"] == "skip"
    assert report["name"].summary.endswith("(check 2)")
    assert "it has no quant_method" in told(report, "metadata")


def test_a_broken_file_is_found(tmp_path):
    folder = toy.write(tmp_path / "toy", toy.llama("128x128"), toy.BLOCK)
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    report = doctor(folder, platform="cpu")
    assert statuses(report)["name"] == "pass"
    assert "model.safetensors is cut short" in told(report, "metadata")
    assert {report[name].status for name in ("dispatch", "scales", "numbers")} == {"skip"}


def test_no_folder_at_all():
    report = doctor("/no/such/folder", platform="cpu")
    assert "There is no folder /no/such/folder" in told(report, "metadata")
    assert report.exit_code == 1
    assert statuses(report)["name"] == "skip"


def test_what_the_index_does_not_list_is_a_warning(tmp_path):
    folder = toy.write(tmp_path / "toy", {}, toy.BLOCK)
    tensors = toy.llama("128x128")
    toy.write_shards(folder, {"a.safetensors": tensors})
    index = folder / "model.safetensors.index.json"
    content = json.loads(index.read_text())
    content["weight_map"].pop(f"{toy.HEAD}.weight")
    index.write_text(json.dumps(content))
    report = doctor(folder, platform="cpu", quick=True)
    assert "holds tensors that model.safetensors.index.json lacks" in told(report, "metadata")
