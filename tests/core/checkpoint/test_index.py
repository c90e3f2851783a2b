"""Opening a folder: the index and its shards agree, and what does not is named."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from quantdock.checkpoint import open_checkpoint
from quantdock.errors import CheckpointError
from tests.sparse_files import LLAMA_CONFIG, llama, write_checkpoint, write_json, write_tensors

SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")


@pytest.fixture
def folder(tmp_path) -> Path:
    """Return a checkpoint of two shards."""
    return write_checkpoint(tmp_path / "model", LLAMA_CONFIG, llama(), shards=2)


def edit_index(folder: Path, **changes: str | None) -> None:
    path = folder / "model.safetensors.index.json"
    weight_map = json.loads(path.read_text())["weight_map"] | changes
    write_json(path, {"weight_map": {k: v for k, v in weight_map.items() if v is not None}})


def refused(folder: Path) -> str:
    with pytest.raises(CheckpointError) as caught:
        open_checkpoint(folder)
    return str(caught.value)


def test_one_file_and_two_shards_hold_the_same(folder, tmp_path):
    one = open_checkpoint(write_checkpoint(tmp_path / "one", LLAMA_CONFIG, llama()))
    two = open_checkpoint(str(folder))
    assert list(one.tensors) == list(two.tensors) == list(llama())
    assert two.config == LLAMA_CONFIG and two.warnings == ()
    assert {entry.file.name for entry in two.tensors.values()} == set(SHARDS)


def test_parts_of_one_weight_may_lie_in_different_shards(tmp_path):
    folder = tmp_path / "model"
    write_checkpoint(folder, LLAMA_CONFIG, llama())
    (folder / "model.safetensors").unlink()
    name = "model.layers.0.mlp.up_proj"
    parts = {f"{name}.weight": ("F8_E4M3", (256, 256)), f"{name}.weight_scale_inv": ("F32", (2, 2))}
    for order in (list(parts), list(reversed(parts))):
        files = dict(zip(order, ("a.safetensors", "b.safetensors"), strict=True))
        for part, file in files.items():
            write_tensors(folder / file, {part: parts[part]})
        write_json(folder / "model.safetensors.index.json", {"weight_map": files})
        assert set(open_checkpoint(folder).tensors) == set(parts)


def test_a_shard_that_is_not_there(folder):
    (folder / SHARDS[1]).unlink()
    text = refused(folder)
    assert f"names 1 of 2 files that are not there: {SHARDS[1]}" in text
    assert "tensors would be missing" in text and "lm_head.weight" not in text.splitlines()[0]


def test_a_tensor_that_its_shard_lacks(folder):
    edit_index(folder, **{"model.layers.9.mlp.up_proj.weight_scale_inv": SHARDS[0]})
    text = refused(folder)
    assert "names 1 tensors that their files lack" in text
    assert f"model.layers.9.mlp.up_proj.weight_scale_inv is not in {SHARDS[0]}" in text


def test_many_missing_tensors_are_counted(folder):
    edit_index(folder, **{f"lost.{i}": SHARDS[0] for i in range(40)})
    assert "lost.4 and 35 more" in refused(folder)


def test_a_shard_cut_short_is_named_with_both_sizes(folder):
    shard = folder / SHARDS[1]
    size = shard.stat().st_size
    with shard.open("r+b") as file:
        file.truncate(size - 100)
    text = refused(folder)
    assert str(shard) in text and f"{size:,} bytes expected, the file has {size - 100:,}" in text


def test_a_shard_that_is_a_pointer(folder):
    (folder / SHARDS[0]).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:1\n")
    text = refused(folder)
    assert "a Git-LFS pointer" in text and "git lfs pull" in text


def test_the_index_wins_over_a_file_beside_it(folder):
    write_tensors(folder / "old.safetensors", {"lm_head.weight": ("F32", (2, 2))})
    checkpoint = open_checkpoint(folder)
    assert checkpoint.tensors["lm_head.weight"].file.name == SHARDS[1]
    assert len(checkpoint.warnings) == 1
    assert (
        "old.safetensors" in checkpoint.warnings[0] and "lm_head.weight" in checkpoint.warnings[0]
    )


def test_a_damaged_file_beside_the_index_is_mentioned_and_not_used(folder):
    (folder / "extra.safetensors").write_bytes(b"rubbish")
    assert "extra.safetensors is not in" in open_checkpoint(folder).warnings[0]


def test_a_tensor_in_two_shards_comes_from_the_one_the_index_names(folder):
    write_tensors(
        folder / SHARDS[0],
        {n: llama()[n] for n in list(llama())[:17]} | {"lm_head.weight": ("F32", (1,))},
    )
    weight_map = {n: SHARDS[0] for n in list(llama())[:17]}
    weight_map |= {n: SHARDS[1] for n in list(llama())[16:]}
    edit_index(folder, **{**weight_map, **{n: SHARDS[0] for n in list(llama())[:16]}})
    checkpoint = open_checkpoint(folder)
    assert checkpoint.tensors["lm_head.weight"].dtype == "bfloat16"
    assert list(checkpoint.tensors) == list(llama())
    assert any(SHARDS[0] in w and "lm_head.weight" in w for w in checkpoint.warnings)


def test_tensors_the_index_forgot_are_kept_with_a_warning(folder):
    edit_index(folder, **{"lm_head.weight": None})
    checkpoint = open_checkpoint(folder)
    assert "lm_head.weight" in checkpoint.tensors
    assert "lacks: lm_head.weight" in checkpoint.warnings[0]


def test_a_tensor_the_index_forgot_must_not_be_in_two_shards(folder):
    write_tensors(
        folder / SHARDS[0],
        {n: llama()[n] for n in list(llama())[:17]} | {"lm_head.weight": ("F32", (1,))},
    )
    edit_index(folder, **{"lm_head.weight": None})
    text = refused(folder)
    assert f"lm_head.weight is in {SHARDS[0]} and in {SHARDS[1]}" in text
    assert "Name in model.safetensors.index.json which file counts" in text


def test_two_files_without_an_index_must_not_share_a_name(folder):
    (folder / "model.safetensors.index.json").unlink()
    assert list(open_checkpoint(folder).tensors) == list(llama())
    shutil.copy(folder / SHARDS[1], folder / "copy.safetensors")
    text = refused(folder)
    assert "tensors are stored twice" in text and SHARDS[1] in text


@pytest.mark.parametrize("content", [{}, {"weight_map": {}}, {"weight_map": {"a": 5}}])
def test_an_index_without_a_weight_map(folder, content):
    write_json(folder / "model.safetensors.index.json", content)
    assert "does not say where the tensors are" in refused(folder)


def test_a_broken_config_names_line_and_column(folder):
    (folder / "config.json").write_text('{\n "model_type": "llama",\n "x": oops\n}')
    assert "config.json is not valid JSON (line 3, column 7)" in refused(folder)


def test_no_such_folder_says_how_to_fetch_one(tmp_path):
    with pytest.raises(CheckpointError, match="hf download"):
        open_checkpoint(tmp_path / "org" / "model")


def test_a_file_is_no_folder(folder):
    with pytest.raises(CheckpointError, match="is a file, not a checkpoint folder"):
        open_checkpoint(folder / "config.json")


def test_shared_checkpoints_open(shared):
    folders = sorted((shared / "models").glob("*/config.json"))
    counts = [len(open_checkpoint(path.parent).tensors) for path in folders]
    assert len(counts) > 40 and min(counts) > 20


def test_only_a_name_that_may_be_a_hub_s_is_offered_for_download():
    with pytest.raises(CheckpointError, match="hf download org/model --local-dir FOLDER"):
        open_checkpoint("org/model")
    with pytest.raises(CheckpointError, match="hf download NAME --local-dir FOLDER"):
        open_checkpoint("/no/such/folder")


@pytest.mark.parametrize(
    ("path", "why"), [("~nobody-of-that-name/x", "home directory"), ("x" * 300, "too long")]
)
def test_a_path_that_no_system_takes(path, why):
    with pytest.raises(CheckpointError, match=f"cannot be read.\n.*{why}"):
        open_checkpoint(path)


def test_a_folder_that_may_not_be_listed(folder, monkeypatch):
    def refuse(self):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "iterdir", refuse)
    assert refused(folder) == (
        f"{folder} cannot be read.\n  Permission denied\nCheck the path and its permissions."
    )


def test_an_index_with_a_name_that_no_system_takes(folder):
    edit_index(folder, **{"lm_head.weight": f"{SHARDS[0]}\0"})
    assert "points outside the checkpoint folder" in refused(folder)
