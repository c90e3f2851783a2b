"""Which files count, what is refused, and that no index leads out of its folder."""

from __future__ import annotations

import pytest

from quantdock.checkpoint import open_checkpoint
from quantdock.checkpoint.weight_files import find_weight_files
from quantdock.errors import CheckpointError
from tests.sparse_files import LLAMA_CONFIG, llama, write_checkpoint, write_json, write_tensors

ONE = {"a.weight": ("F32", (2, 2))}


def refused(folder) -> CheckpointError:
    with pytest.raises(CheckpointError) as caught:
        find_weight_files(folder)
    return caught.value


def test_the_index_comes_before_the_single_file(tmp_path):
    write_checkpoint(tmp_path, LLAMA_CONFIG, llama(), shards=2)
    write_tensors(tmp_path / "model.safetensors", ONE)
    assert find_weight_files(tmp_path).index == tmp_path / "model.safetensors.index.json"


def test_the_single_file_comes_before_others(tmp_path):
    for name in ("model", "golden", "consolidated"):
        write_tensors(tmp_path / f"{name}.safetensors", ONE)
    found = find_weight_files(tmp_path)
    assert (found.index, found.shards) == (None, (tmp_path / "model.safetensors",))


def test_an_index_of_another_stem_is_taken_where_it_is_the_only_one(tmp_path):
    write_tensors(tmp_path / "x.safetensors", ONE)
    index = write_json(tmp_path / "x.safetensors.index.json", {})
    assert find_weight_files(tmp_path).index == index


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "model.pth", "model.ckpt"])
def test_pickle_is_refused_with_the_way_out(tmp_path, name):
    (tmp_path / name).write_bytes(b"\x80\x02")
    error = refused(tmp_path)
    assert f"holds pickle weights (refused).\n  found {name}" in str(error)
    assert "save_pretrained" in str(error)
    assert error.facts["not_yet"] == ""


@pytest.mark.parametrize(
    ("name", "kind"), [("m.gguf", "gguf"), ("consolidated.safetensors", "mistral-native")]
)
def test_kinds_that_are_known_and_come_later(tmp_path, name, kind):
    (tmp_path / name).write_bytes(b"GGUF")
    error = refused(tmp_path)
    assert "(known, not yet)" in str(error) and name in str(error)
    assert error.facts["not_yet"] == kind


def test_gguf_beside_a_file_that_is_no_model(tmp_path):
    write_tensors(tmp_path / "golden.safetensors", ONE)
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    assert refused(tmp_path).facts["not_yet"] == "gguf"
    write_json(tmp_path / "config.json", {})
    assert find_weight_files(tmp_path).shards == (tmp_path / "golden.safetensors",)


def test_no_weights_at_all(tmp_path):
    write_json(tmp_path / "config.json", {})
    assert "holds no weights" in str(refused(tmp_path))
    assert refused(tmp_path).todo.endswith("or name the folder that holds them.")


@pytest.mark.parametrize("inner", ["checkpoint-500", "snapshots/0a1b"])
def test_a_folder_of_checkpoints_is_told_one_of_them(tmp_path, inner):
    (tmp_path / inner).mkdir(parents=True)
    write_json(tmp_path / inner / "config.json", {})
    assert refused(tmp_path).todo.endswith(f"that holds them, such as {tmp_path / inner}.")


@pytest.mark.parametrize("name", ["../x.safetensors", "sub/../../x.safetensors", "..\\x"])
def test_an_index_that_climbs_out(tmp_path, name):
    folder = tmp_path / "model"
    folder.mkdir()
    write_tensors(tmp_path / "x.safetensors", ONE)
    write_json(folder / "config.json", {})
    write_json(folder / "model.safetensors.index.json", {"weight_map": {"a.weight": name}})
    with pytest.raises(CheckpointError, match="points outside the checkpoint folder") as caught:
        open_checkpoint(folder)
    assert repr(name) in str(caught.value)


def test_an_index_with_an_absolute_name(tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    file = write_tensors(tmp_path / "x.safetensors", ONE)
    write_json(folder / "config.json", {})
    write_json(folder / "model.safetensors.index.json", {"weight_map": {"a.weight": str(file)}})
    with pytest.raises(CheckpointError, match="points outside"):
        open_checkpoint(folder)


def test_a_link_that_leads_out(tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    write_tensors(tmp_path / "x.safetensors", ONE)
    (folder / "link.safetensors").symlink_to(tmp_path / "x.safetensors")
    write_json(folder / "config.json", {})
    write_json(
        folder / "model.safetensors.index.json", {"weight_map": {"a.weight": "link.safetensors"}}
    )
    with pytest.raises(CheckpointError, match="points outside"):
        open_checkpoint(folder)


def test_links_within_the_folder_and_into_a_hub_cache_are_fine(tmp_path):
    folder = tmp_path / "models--a--b" / "snapshots" / "0123"
    blobs = tmp_path / "models--a--b" / "blobs"
    blobs.mkdir(parents=True)
    folder.mkdir(parents=True)
    write_tensors(blobs / "abc", ONE)
    (folder / "m.safetensors").symlink_to("../../blobs/abc")
    write_json(blobs / "cfg", {"model_type": "x"})
    (folder / "config.json").symlink_to("../../blobs/cfg")
    write_json(
        folder / "model.safetensors.index.json", {"weight_map": {"a.weight": "m.safetensors"}}
    )
    assert list(open_checkpoint(folder).tensors) == ["a.weight"]
    outside = tmp_path / "home"
    outside.symlink_to(folder)
    assert list(open_checkpoint(outside).tensors) == ["a.weight"]
