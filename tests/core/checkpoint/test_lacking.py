"""A layer that lost a tensor which may be left out is told by those that have it."""

from __future__ import annotations

from pathlib import Path

import pytest

import quantdock
from quantdock.checkpoint.header import TensorEntry
from quantdock.checkpoint.lacking import find_lacking
from tests.toy_files import edit_tensors


def tensors(*layers: str, last: str = "", **dtypes: str) -> dict[str, TensorEntry]:
    """Return entries for layers 0, 1, ...: each names its parts, separated by blanks."""
    names = [
        f"model.layers.{number}.mlp.up_proj.{part}"
        for number, parts in enumerate(layers)
        for part in parts.split()
    ]
    return {
        name: TensorEntry(name, dtypes.get(name.rpartition(".")[2], "int32"), (2,), Path(), 0, 8)
        for name in names
    }


FULL = "qweight qzeros scales g_idx"


def test_what_one_layer_lost_is_named_with_those_that_have_it() -> None:
    (lacking,) = find_lacking(tensors(FULL, FULL, "qweight qzeros scales", FULL))
    assert lacking.part == "g_idx"
    assert lacking.layers == ("model.layers.2.mlp.up_proj",)
    assert str(lacking) == "stored without g_idx, which 3 like it have"


@pytest.mark.parametrize(
    "layers",
    [
        (FULL, FULL),
        (FULL, "qweight qzeros scales"),  # no more have it than lack it
        (FULL, FULL, "weight"),  # plain, or quantized otherwise
        (FULL, FULL, "qweight scales g_idx zeros"),
        ("weight bias", "weight bias", "weight"),  # of no quantization
        ("weight k_scale", "weight k_scale", "weight"),  # of the cache
    ],
)
def test_layers_that_are_stored_otherwise_lack_nothing(layers: tuple[str, ...]) -> None:
    assert find_lacking(tensors(*layers)) == []


def test_a_plain_layer_among_quantized_ones_has_another_dtype() -> None:
    stored = tensors("weight weight_scale", "weight weight_scale", "weight", weight="float8_e4m3fn")
    assert [lacking.part for lacking in find_lacking(stored)] == ["weight_scale"]
    name = "model.layers.2.mlp.up_proj.weight"
    stored[name] = TensorEntry(name, "bfloat16", (2,), Path(), 0, 4)
    assert find_lacking(stored) == []


def without(shared: Path, tmp_path: Path, name: str, dropped: str) -> Path:
    """Return a copy of a checkpoint that lost one tensor."""
    source, folder = shared / "models" / name, tmp_path / name
    folder.mkdir()
    for file in ("config.json", "model.safetensors"):
        (folder / file).write_bytes((source / file).read_bytes())
    edit_tensors(folder, lambda stored: stored.pop(dropped))
    return folder


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("gptq-w4-g64-desc", "g_idx"),
        ("modelopt-int4-awq", "pre_quant_scale"),
        ("quark-int8", "weight_zero_point"),
    ],
)
def test_plans_and_doctor_say_what_a_file_lost(
    shared: Path, tmp_path: Path, name: str, part: str
) -> None:
    layer = "model.layers.0.mlp.down_proj"
    folder = without(shared, tmp_path, name, f"{layer}.{part}")
    text = f"1 layer ({layer}): stored without {part}, which 4 like it have; numbers are wrong"
    assert any(text in warning for warning in quantdock.explain(folder, "cpu").warnings)
    assert not any(text in w for w in quantdock.explain(shared / "models" / name, "cpu").warnings)
    outcome = quantdock.doctor(folder, platform="cpu", quick=True)["scales"]
    assert outcome.status == "warn"
    assert outcome.findings[0].what == f"{layer}: stored without {part}, which 4 like it have."
    loaded = quantdock.load(folder, device="cpu", platform="cpu").quantdock_plan
    assert any(text in warning for warning in loaded.warnings)


def test_what_loading_needs_is_said_once(shared: Path, tmp_path: Path) -> None:
    layer = "model.layers.0.mlp.down_proj"
    folder = without(shared, tmp_path, "gptq-w4-g64-desc", f"{layer}.scales")
    told = [w for w in quantdock.explain(folder, "cpu").warnings if "scales" in w and layer in w]
    assert told == [f"1 layer ({layer}): loading would stop: scales is missing"]
    findings = quantdock.doctor(folder, platform="cpu", quick=True)["scales"].findings
    assert [finding.level for finding in findings] == ["fail"]
