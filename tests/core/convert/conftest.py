"""Small 16-bit checkpoints to convert: one file, two files."""

from __future__ import annotations

from pathlib import Path

import pytest

from toy_llama import LAYER, llama, write, write_shards

FIRST, SECOND = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    """Return a Llama of one layer in bfloat16, in one file, with a tokenizer of sorts."""
    folder = write(tmp_path / "plain", llama())
    (folder / "tokenizer.json").write_text('{"model": "ünï"}', encoding="utf-8")
    return folder


@pytest.fixture
def sharded(plain: Path) -> Path:
    """Return the same in two files: attention in the first, all else in the second."""
    tensors = llama()
    attention = {name: t for name, t in tensors.items() if name.startswith(f"{LAYER}.self_attn")}
    rest = {name: t for name, t in tensors.items() if name not in attention}
    write_shards(plain, {FIRST: attention, SECOND: rest})
    return plain
