"""Misfits of headers: facts in numbers, the settings that would fit, and the remedy."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from quantdock import doctor, explain, load
from quantdock.checkpoint import open_checkpoint
from quantdock.checkpoint.header import TensorEntry
from quantdock.configs.awq import AWQConfig
from quantdock.configs.compressed_tensors import CompressedTensorsConfig
from quantdock.configs.gptq import GPTQConfig
from quantdock.errors import ConfigError
from quantdock.plan import Plan
from quantdock.plan.stored_layers import StoredModel, stored_model
from quantdock.schemes import Decision, LayerFacts, StoredTensor

Q = "model.layers.0.self_attn.q_proj"
GPTQ, AWQ, CT = "models/gptq-w4-g64-desc", "models/awq-w4-g32", "models/ct-w4a16-g128"
CONFIGS = {GPTQ: GPTQConfig, AWQ: AWQConfig, CT: CompressedTensorsConfig}


@pytest.fixture(scope="module")
def decide(shared: Path) -> Callable[..., Decision]:
    """Return a function that decides q_proj of a checkpoint, with changes of block and headers."""

    def decided(
        name: str, change: Mapping[str, Any], turned: str = "", cut: str = "", drop: str = ""
    ) -> Decision:
        stored = dict(layer_of(open_checkpoint(shared / name).tensors).stored or {})
        for part in (turned, cut):
            if part:
                *rest, last = stored[part].shape
                shape = (last, *rest) if turned else (*rest, last - 1)
                stored[part] = StoredTensor(dtype=stored[part].dtype, shape=shape)
        stored.pop(drop, None)
        block = json.loads((shared / name / "config.json").read_text())["quantization_config"]
        weights = block["config_groups"]["group_0"]["weights"] if name == CT else block
        weights.update(change)
        return CONFIGS[name].from_config(block).scheme_for(LayerFacts(prefix=Q, stored=stored))

    return decided


def layer_of(tensors: Mapping[str, TensorEntry]) -> LayerFacts:
    model: StoredModel = stored_model(tensors)
    return next(layer.facts for layer in model.layers if layer.facts.prefix == Q)


@pytest.mark.parametrize("name", CONFIGS)
def test_files_as_their_tools_wrote_them_fit(decide, name):
    assert decide(name, {}).kind == "quantized"


@pytest.mark.parametrize(
    ("name", "change", "fits"),
    [
        (GPTQ, {"bits": 8}, "bits = 4, group_size = 64"),
        (GPTQ, {"group_size": 32}, "bits = 4, group_size = 64"),
        (AWQ, {"version": "gemv"}, "version = 'gemm', bits = 4, group_size = 32"),
        (AWQ, {"group_size": 64}, "bits = 4, group_size = 32"),
        (CT, {"num_bits": 3}, "num_bits = 4, group_size = 128, symmetric = True"),
        (CT, {"symmetric": False}, "num_bits = 4, group_size = 128, symmetric = True"),
        (CT, {"actorder": "group"}, "num_bits = 4, group_size = 128, symmetric = True"),
    ],
)
def test_a_wrong_setting_is_told_with_the_one_that_fits_and_no_other(decide, name, change, fits):
    decision = decide(name, change)
    assert f"(they fit {fits})" in decision.because
    assert decision.todo.startswith(f"Let the quantization block say {fits}: ")


def test_a_stated_shape_tells_bits_from_groups(decide):
    """8 bits in groups of 64 would make the same words of half as many columns."""
    decision = decide(CT, {"group_size": 64})
    assert f"{Q}.weight_scale is [256, 1], not [256, 2]" in decision.because
    assert "num_bits = 8" not in decision.because


@pytest.mark.parametrize(
    ("name", "damage", "text"),
    [
        (GPTQ, {"cut": "g_idx"}, "g_idx is [127], not [128]"),
        (GPTQ, {"turned": "scales"}, "scales is [256, 2], not [2, 256]"),
        (GPTQ, {"turned": "qzeros"}, "qzeros is [32, 2], not [2, 32]"),
        (AWQ, {"turned": "scales"}, "scales is [256, 4], not [4, 256]"),
        (CT, {"turned": "weight_scale"}, "weight_scale is [1, 256], not [256, 1]"),
        (CT, {"drop": "weight_scale"}, "weight_scale is missing"),
        (CT, {"drop": "weight_shape"}, "weight_shape is missing"),
    ],
)
def test_a_damaged_tensor_is_named_itself_and_no_setting_is_blamed(decide, name, damage, text):
    decision = decide(name, {}, **damage)
    assert f"{Q}.{text}" in decision.because and "they fit" not in decision.because
    assert "download the file again" in decision.todo and "none" not in decision.todo


@pytest.fixture
def wrong_bits(shared: Path, tmp_path: Path) -> Path:
    """Return a GPTQ file of 4 bits that states 8."""
    for file in (shared / GPTQ).iterdir():
        (tmp_path / file.name).symlink_to(file)
    config = json.loads((tmp_path / "config.json").read_text())
    config["quantization_config"]["bits"] = 8
    for file in ("config.json", "quantize_config.json"):
        (tmp_path / file).unlink(missing_ok=True)
    (tmp_path / "config.json").write_text(json.dumps(config))
    return tmp_path


REMEDY = "Let the quantization block say bits = 4, group_size = 64: "
NUMBERS = "q_proj.qweight is [16, 256], not [32, 256]; "


def test_a_plan_has_the_numbers_and_the_remedy(wrong_bits):
    plan = explain(wrong_bits, platform="cpu:generic")
    assert any(f"model.layers.*.self_attn.{NUMBERS}" in warning for warning in plan.warnings)
    refused = [layer for layer in plan.layers if layer.decision == "error"]
    assert len(refused) == 35
    (todo,) = {layer.todo for layer in refused}
    assert todo.startswith(REMEDY)
    assert Plan.from_json(plan.to_json()) == plan


def test_doctor_and_loading_have_the_same_numbers_and_the_same_remedy(wrong_bits):
    report = doctor(wrong_bits, platform="cpu:generic", quick=True)
    findings = [finding for finding in report["shapes"].findings if finding.level == "fail"]
    assert findings and all(finding.todo.startswith(REMEDY) for finding in findings)
    assert any(
        finding.what.endswith("qweight is [16, 256], not [32, 256].") for finding in findings
    )
    with pytest.raises(ConfigError) as caught:
        load(wrong_bits)
    assert NUMBERS in str(caught.value) and caught.value.todo.startswith(REMEDY)
