"""The demo's serialized block checkpoint: the layout, the values, several shards."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from demo.block_checkpoint import SPEC, write_block_checkpoint
from demo.models import TINY_LLAMA
from quantdock.numerics.quantize import dequantize


def test_the_block_checkpoint_stands_for_the_same_weights(tmp_path: Path) -> None:
    target = write_block_checkpoint(TINY_LLAMA, tmp_path / "fp8")
    plain = load_file(TINY_LLAMA / "model.safetensors")
    stored = load_file(target / "model.safetensors")
    linears = {name for name in plain if name.endswith("_proj.weight")}
    assert len(linears) == 4 * 7
    assert stored.keys() == plain.keys() | {f"{name}_scale_inv" for name in linears}
    down = "model.layers.0.mlp.down_proj.weight"
    assert stored[f"{down}_scale_inv"].shape == (2, 6)
    for name, weight in plain.items():
        if name not in linears:
            assert torch.equal(stored[name], weight), name
            continue
        scale = stored[f"{name}_scale_inv"]
        assert (stored[name].dtype, scale.dtype) == (torch.float8_e4m3fn, torch.float32)
        values = dequantize(stored[name], scale, SPEC)
        error = (values - weight.float()).norm() / weight.float().norm()
        assert error < 0.03, name


def test_the_block_checkpoint_says_what_it_is(tmp_path: Path) -> None:
    target = write_block_checkpoint(TINY_LLAMA, tmp_path / "fp8")
    config = json.loads((target / "config.json").read_text(encoding="utf-8"))
    assert config["quantization_config"]["quant_method"] == "fp8"
    assert config["quantization_config"]["weight_block_size"] == [128, 128]
    assert (target / "tokenizer.json").read_bytes() == (TINY_LLAMA / "tokenizer.json").read_bytes()


def test_shards_are_written_one_by_one_and_indexed_again(tmp_path: Path) -> None:
    source = tmp_path / "plain"
    source.mkdir()
    shards: dict[str, dict[str, Any]] = {
        "model-00001-of-00002.safetensors": {"model.layers.0.mlp.up_proj.weight": torch.ones(8, 4)},
        "model-00002-of-00002.safetensors": {"model.norm.weight": torch.ones(4)},
    }
    for name, tensors in shards.items():
        save_file(tensors, source / name)
    (source / "config.json").write_text('{"model_type": "llama"}')
    (source / "model.safetensors.index.json").write_text('{"weight_map": {}}')
    target = write_block_checkpoint(source, tmp_path / "fp8")
    index = json.loads((target / "model.safetensors.index.json").read_text())
    first, second = shards
    assert index == {
        "metadata": {"total_size": 8 * 4 + 4 + 4 * 4},
        "weight_map": {
            "model.layers.0.mlp.up_proj.weight": first,
            "model.layers.0.mlp.up_proj.weight_scale_inv": first,
            "model.norm.weight": second,
        },
    }
    assert load_file(target / first)["model.layers.0.mlp.up_proj.weight_scale_inv"].shape == (1, 1)


def test_a_checkpoint_is_never_written_over_its_source() -> None:
    with pytest.raises(ValueError, match="is the source itself"):
        write_block_checkpoint(TINY_LLAMA, TINY_LLAMA / ".." / "tiny-llama")
