"""Changing the files of a checkpoint folder that a test has written."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

import quantdock


def edit_config(folder: Path, **fields) -> None:
    """Set fields of config.json; None removes one."""
    path = folder / "config.json"
    config = json.loads(path.read_text())
    config.update(fields)
    path.write_text(json.dumps({k: v for k, v in config.items() if v is not None}))


def edit_tensors(folder: Path, edit: Callable[[dict[str, torch.Tensor]], None]) -> None:
    """Let ``edit`` change the tensors of the folder's one file."""
    path = folder / "model.safetensors"
    tensors = load_file(path)
    edit(tensors)
    save_file(tensors, path, metadata={"format": "pt"})


def write_block_checkpoint(source: Path, target: Path) -> Path:
    """Return ``target`` after writing there, in fp8 blocks, the checkpoint folder ``source``."""
    return quantdock.convert_checkpoint(source, target, "fp8_per_block").target


def copy_checkpoint(source: Path, target: Path) -> Path:
    """Return the new folder ``target`` with the config and the weights of ``source``."""
    target.mkdir()
    for name in ("config.json", "model.safetensors"):
        (target / name).write_bytes((source / name).read_bytes())
    return target
