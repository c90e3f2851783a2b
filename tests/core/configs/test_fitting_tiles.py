"""Which tiles a scale is for, by its shape; and the settings that broken files are told to have."""

from __future__ import annotations

import json
from typing import Any

import pytest

import quantdock
from quantdock.configs.fitting_tiles import fitting_tiles
from quantdock.schemes import StoredTensor


def tiles(shape: tuple[int, ...], scale: tuple[int, ...]) -> list[str]:
    weight = StoredTensor(dtype="float8_e4m3fn", shape=shape)
    found = fitting_tiles("fp8_e4m3", weight, StoredTensor(dtype="float32", shape=scale))
    return [str(spec).removeprefix("fp8_e4m3") for spec in found]


@pytest.mark.parametrize(
    ("shape", "scale", "expected"),
    [
        ((256, 256), (), ["[*x*]"]),
        ((256, 256), (256,), ["[1x*]"]),
        ((512, 256), (4, 2), ["[128x128]"]),
        ((300, 200), (3, 2), ["[128x128]"]),  # edge tiles are cut
        ((128, 256), (1, 2), ["[128x128]"]),  # square blocks come first
        ((256, 256), (256, 4), ["[1x64]"]),
        ((256, 256), (8, 2), ["[32x128]"]),
        ((256, 256), (2, 1, 2, 1), ["[128x128]"]),
        ((256, 256), (3, 7), []),
        ((256,), (1,), []),
    ],
)
def test_the_shape_of_a_scale_shows_its_tiles(shape: Any, scale: Any, expected: list[str]) -> None:
    assert tiles(shape, scale) == expected


def quark(**fields: Any) -> Any:
    return {"global_quant_config": {"weight": fields}}


def compressed(**fields: Any) -> Any:
    return {"config_groups": {"group_0": {"weights": fields}}}


@pytest.mark.parametrize(
    ("name", "wrong", "fitting"),
    [
        ("fp8block-128x128", {"weight_block_size": [64, 64]}, "weight_block_size = [128, 128]"),
        ("fp8block-128x128", {"weight_block_size": [256, 256]}, "weight_block_size = [128, 128]"),
        (
            "fp8block-qwen3moe-64x64",
            {"weight_block_size": [32, 64]},
            "weight_block_size = [64, 64]",
        ),
        ("quark-int4-wo-32", quark(group_size=64), "qscheme = 'per_group', group_size = 32"),
        ("quark-uint4-wo-32", quark(group_size=128), "qscheme = 'per_group', group_size = 32"),
        (
            "quark-int4-wo-32",
            quark(dtype="int8"),
            "dtype = 'int4', qscheme = 'per_group', group_size = 32",
        ),
        ("quark-int8", quark(qscheme="per_channel", ch_axis=0), "qscheme = 'per_tensor'"),
        (
            "ct-fp8-static",
            compressed(strategy="block", block_structure=[64, 64]),
            "strategy = 'tensor'",
        ),
        ("modelopt-fp8", {"quant_algo": "W8A16"}, "quant_algo = 'FP8'"),
        ("modelopt-fp8", {"quant_algo": "NVFP4"}, "quant_algo = 'FP8'"),
        ("modelopt-int4-awq", {"quant_algo": "W8A16"}, "quant_algo = 'W4A16_AWQ'"),
        ("modelopt-nvfp4-w4a16", {"quant_algo": "FP8"}, "quant_algo = 'W4A16_NVFP4'"),
        (
            "modelopt-fp8-pcpt",
            {"quant_algo": "FP8_PB_WO"},
            "quant_algo = 'FP8_PER_CHANNEL_PER_TOKEN'",
        ),
        (
            "modelopt-fp8-pb-wo",
            {"quant_algo": "FP8_PER_CHANNEL_PER_TOKEN"},
            "quant_algo = 'FP8_PB_WO'",
        ),
    ],
)
def test_a_wrong_setting_is_told_with_the_one_that_fits(
    shared: Any, tmp_path: Any, name: str, wrong: Any, fitting: str, caplog: Any
) -> None:
    source = shared / "models" / name
    config = json.loads((source / "config.json").read_text())
    merge(config["quantization_config"], wrong)
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "model.safetensors").symlink_to(source / "model.safetensors")
    plan = quantdock.explain(tmp_path, platform="cpu")
    refused = [layer for layer in plan.layers if layer.decision == "error"]
    assert refused and {layer.todo for layer in refused} == {
        f"Let the quantization block say {fitting}: the tensors fit that. Where other layers do "
        "not, download the file again."
    }
    assert "input scale, which is not used" not in caplog.text  # of what was only tried


def merge(block: dict[str, Any], fields: dict[str, Any]) -> None:
    for name, value in fields.items():
        if isinstance(value, dict):
            merge(block[name], value)
        else:
            block[name] = value
