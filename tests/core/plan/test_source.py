"""What a plan is made of."""

from __future__ import annotations

import pytest

from quantdock.errors import CheckpointError
from quantdock.plan.source import read_source
from tests.sparse_files import LLAMA_CONFIG, llama, write_checkpoint, write_json


def test_a_folder_with_weights(tmp_path):
    folder = write_checkpoint(tmp_path / "m", LLAMA_CONFIG, llama())
    source = read_source(str(folder))
    assert source.config == LLAMA_CONFIG and source.folder == folder
    assert len(source.checkpoint.tensors) == len(llama())


def test_json_in_a_folder_in_a_file_and_in_memory(tmp_path):
    path = write_json(tmp_path / "config.json", LLAMA_CONFIG)
    for given, folder in ((tmp_path, tmp_path), (path, tmp_path), (LLAMA_CONFIG, None)):
        source = read_source(given)
        assert (source.config, source.folder, source.checkpoint) == (LLAMA_CONFIG, folder, None)


def test_a_folder_with_nothing_in_it(tmp_path):
    with pytest.raises(CheckpointError, match="holds no weights"):
        read_source(tmp_path)


def test_a_damaged_weight_file_is_not_passed_over(tmp_path):
    folder = write_checkpoint(tmp_path / "m", LLAMA_CONFIG, llama())
    (folder / "model.safetensors").write_bytes(b"\0" * 20)
    with pytest.raises(CheckpointError, match="not a safetensors file"):
        read_source(folder)
