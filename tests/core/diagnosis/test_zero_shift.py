"""GPTQ files that state the other version of zero points: every weight is one scale off."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from examined import statuses, told
from quantdock.configs.awq import AWQConfig
from quantdock.configs.gptq import GPTQConfig
from quantdock.diagnosis import Report, doctor
from quantdock.diagnosis.zero_shift import find_shift, mean_steps
from quantdock.formats import parse_spec
from quantdock.numerics import quantize_weight
from toy_gptq import AWQ, GPTQ, in_act_order

BASE = "models/bases/stories260k-d128"


def relabelled(shared: Path, folder: Path, name: str, version: str) -> Path:
    """Return a copy of a checkpoint that states another version."""
    for file in (shared / "models" / name).iterdir():
        if file.name not in ("config.json", "quantize_config.json"):
            (folder / file.name).symlink_to(file)
    config = json.loads((shared / "models" / name / "config.json").read_text())
    config["quantization_config"].pop("format", None)
    config["quantization_config"]["checkpoint_format"] = version
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def examined(folder: Path, base: Path | None = None) -> Report:
    return doctor(folder, platform="cpu", base=base, layers="layers.3.mlp")


@pytest.mark.parametrize(
    ("name", "stated", "meant", "where"),
    [
        ("gptq-w4-g32-asym-v2", "gptq", "gptq_v2", "below"),
        ("gptq-w4-g64-asym-v1", "gptq_v2", "gptq", "above"),
    ],
)
def test_the_wrong_version_is_recognised_by_the_weights_and_by_the_base(
    shared, tmp_path, name, stated, meant, where
):
    folder = relabelled(shared, tmp_path, name, stated)
    because = f"zero points are written as {meant} has them, though checkpoint_format = {stated!r}"
    alone = examined(folder)
    assert f"weights lie one scale {where} 0, in the mean." in told(alone, "scales")
    assert because in told(alone, "scales")
    beside = examined(folder, shared / BASE)
    assert f"weights lie one scale {where} their 16-bit weights." in told(beside, "numbers")
    assert because in told(beside, "numbers") and "Name the base" not in told(beside, "numbers")
    assert statuses(beside)["numbers"] == "fail"


@pytest.mark.parametrize("name", ["gptq-w4-g32-asym-v2", "gptq-w4-g64-asym-v1"])
def test_files_as_they_were_written_are_no_shift(shared, name):
    report = examined(shared / "models" / name, shared / BASE)
    assert statuses(report)["scales"] == statuses(report)["numbers"] == "pass"


@pytest.mark.parametrize("shift", [-1, 0, 1])
def test_the_mean_is_in_scales(shift):
    weight = in_act_order(64, 128)
    (segment,) = weight.segments
    segment.zero.add_(shift)
    shifted = mean_steps(weight, weight.dequantize())
    assert shifted == 0.0
    other = in_act_order(64, 128)
    assert mean_steps(weight, other.dequantize()) == pytest.approx(-shift, abs=1e-5)


def test_weights_without_zero_points_have_no_shift_to_find():
    assert mean_steps(quantize_weight(torch.randn(8, 32), parse_spec("int4[1x32]"))) is None


def test_only_settings_that_explain_a_shift_are_blamed():
    low = {"a": -1.1, "b": -0.9, "c": 0.0}
    asym = {**GPTQ, "sym": False}
    config = GPTQConfig.from_config(asym)
    finding = find_shift(low, config, is_measured=False)
    assert finding is not None and finding.names == ("a", "b") and finding.level == "warn"
    assert find_shift({name: -mean for name, mean in low.items()}, config, is_measured=True) is None
    assert find_shift({**low, "d": 0.1}, config, is_measured=True) is None
    for other in (GPTQConfig.from_config(GPTQ), AWQConfig.from_config(AWQ)):
        assert find_shift(low, other, is_measured=True) is None
