"""Headers: right ones are read without torch, wrong ones name the file and both sizes."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from quantdock.checkpoint import read_header
from quantdock.checkpoint.header import MAX_HEADER_BYTES
from quantdock.errors import CheckpointError
from quantdock.schemes import StoredTensor
from tests.sparse_files import header_of, write_raw, write_tensors

TWO = {"a.weight": ("F8_E4M3", (4, 6)), "a.scale": ("F32", (1, 2))}


def refused(path: Path) -> CheckpointError:
    """Return the error of reading ``path``, which must name the file."""
    with pytest.raises(CheckpointError) as caught:
        read_header(path)
    assert str(path) in str(caught.value)
    assert caught.value.path == path
    return caught.value


def damaged(tmp_path: Path, change) -> str:
    """Return the text of the error after ``change`` edited the header of a valid file."""
    header, size = header_of(TWO)
    size = change(header) or size
    return str(refused(write_raw(tmp_path / "x.safetensors", json.dumps(header).encode(), size)))


def test_every_tensor_is_found_at_its_bytes(tmp_path):
    path = write_tensors(tmp_path / "x.safetensors", TWO)
    entries = read_header(path)
    length = path.stat().st_size - 32
    assert list(entries) == ["a.weight", "a.scale"]
    weight, scale = entries.values()
    assert (weight.dtype, weight.shape, weight.file) == ("float8_e4m3fn", (4, 6), path)
    assert (weight.start, weight.end, weight.num_bytes) == (length, length + 24, 24)
    assert (scale.start, scale.end) == (length + 24, path.stat().st_size)
    assert scale.stored == StoredTensor(dtype="float32", shape=(1, 2))


def test_the_order_is_that_of_the_bytes_and_metadata_is_no_tensor(tmp_path):
    header, size = header_of(TWO)
    header = dict(reversed(header.items())) | {"__metadata__": {"format": "pt"}}
    path = write_raw(tmp_path / "x.safetensors", json.dumps(header).encode(), size)
    assert list(read_header(path)) == ["a.weight", "a.scale"]


def test_an_empty_tensor_and_a_scalar_are_read(tmp_path):
    tensors = {"empty": ("F32", (0, 8)), "one": ("BF16", ())}
    entries = read_header(write_tensors(tmp_path / "x.safetensors", tensors))
    assert [(e.shape, e.num_bytes) for e in entries.values()] == [((0, 8), 0), ((), 2)]


def test_an_entry_cannot_be_changed_and_can_be_pickled(tmp_path):
    entry = read_header(write_tensors(tmp_path / "x.safetensors", TWO))["a.weight"]
    with pytest.raises(AttributeError):
        entry.start = 0
    assert pickle.loads(pickle.dumps(entry)) == entry


def test_a_file_of_another_library_reads_the_same(tmp_path):
    torch = pytest.importorskip("torch")
    from safetensors.torch import save_file

    tensors = {"w": torch.ones(3, 5, dtype=torch.bfloat16), "s": torch.full((2,), 7.0)}
    save_file(tensors, tmp_path / "x.safetensors")
    entries = read_header(tmp_path / "x.safetensors")
    raw = (tmp_path / "x.safetensors").read_bytes()
    assert entries["w"].stored == StoredTensor(dtype="bfloat16", shape=(3, 5))
    assert raw[entries["s"].start : entries["s"].end] == bytes.fromhex("0000e040") * 2


def test_a_file_cut_in_its_data(tmp_path):
    path = write_tensors(tmp_path / "x.safetensors", {"w": ("F32", (100, 100))})
    whole = path.stat().st_size
    with path.open("r+b") as file:
        file.truncate(whole - 100)
    text = str(refused(path))
    assert "is cut short" in text
    assert f"{whole:,} bytes expected, the file has {whole - 100:,}" in text


def test_a_file_cut_in_its_header(tmp_path):
    path = write_tensors(tmp_path / "x.safetensors", TWO)
    whole = path.stat().st_size - 32
    with path.open("r+b") as file:
        file.truncate(60)
    text = str(refused(path))
    assert "is cut off inside its header" in text
    assert f"the header ends at byte {whole:,}, the file has 60 bytes" in text


def test_a_file_with_more_bytes_than_its_header_names(tmp_path):
    path = write_tensors(tmp_path / "x.safetensors", TWO)
    with path.open("ab") as file:
        file.write(b"rest")
    assert "has bytes that its header does not name" in str(refused(path))


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "a Git-LFS pointer"),
        (b"\n<!DOCTYPE html><html>", "an HTML page"),
        (b'{"error": "not found", "code": 404}', "is not a safetensors file"),
        (b"PK\x03\x04" + b"\0" * 60, "is not a safetensors file"),
        (b"", "is too short for a safetensors file"),
        (b"\x02\0\0\0\0\0\0\0[]", "is not a safetensors file"),
        (b"\x05\0\0\0\0\0\0\0{abc}", "has a header that is no JSON"),
        (b"\xff" * 8 + b"{", "declares an absurd header"),
    ],
)
def test_other_things_under_that_name(tmp_path, content, expected):
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    assert expected in str(refused(path))


def test_a_header_larger_than_the_limit_is_not_read(tmp_path):
    path = write_raw(tmp_path / "x.safetensors", b"{", 0)
    path.write_bytes((MAX_HEADER_BYTES + 1).to_bytes(8, "little") + b"{")
    assert f"the limit is {MAX_HEADER_BYTES:,}" in str(refused(path))


def test_a_header_nested_like_a_bomb(tmp_path):
    path = write_raw(tmp_path / "x.safetensors", b'{"a":' * 200_000, 0)
    assert "no JSON" in str(refused(path))


def test_a_missing_file(tmp_path):
    assert "cannot be read" in str(refused(tmp_path / "x.safetensors"))


def test_a_link_to_nowhere_says_where_it_leads(tmp_path):
    (tmp_path / "x.safetensors").symlink_to("../blobs/0a1b")
    error = refused(tmp_path / "x.safetensors")
    assert error.why == ("it is a link to ../blobs/0a1b, which is not there",)
    assert "cp -rL" in error.todo


def test_a_size_that_does_not_fit_dtype_and_shape(tmp_path):
    def change(header):
        header["a.weight"]["shape"] = [4, 7]

    text = damaged(tmp_path, change)
    assert "has a wrong size for tensor a.weight" in text
    assert "F8_E4M3 [4, 7] needs 28 bytes; it has [0, 24]" in text


def test_offsets_behind_the_end_of_the_file(tmp_path):
    def change(header):
        header["a.scale"].update(shape=[1, 200], data_offsets=[24, 824])

    assert "is cut short" in damaged(tmp_path, change)


def test_tensors_that_overlap(tmp_path):
    def change(header):
        header["a.scale"]["data_offsets"] = [20, 28]
        return 28

    assert "tensor a.scale overlaps what stands before it" in damaged(tmp_path, change)


def test_a_hole_between_tensors(tmp_path):
    def change(header):
        header["a.scale"]["data_offsets"] = [28, 36]
        return 36

    assert "tensor a.scale follows a gap" in damaged(tmp_path, change)


def test_an_unknown_dtype_is_named_with_the_known_ones(tmp_path):
    def change(header):
        header["a.weight"]["dtype"] = "F8_E9M9"

    text = damaged(tmp_path, change)
    assert "has tensor a.weight in an unknown dtype" in text
    assert "'F8_E9M9'; known: BF16" in text


@pytest.mark.parametrize(
    "entry",
    [
        5,
        {"dtype": "F32"},
        {"dtype": "F32", "shape": [-1, -4], "data_offsets": [0, 16]},
        {"dtype": "F32", "shape": [2.0, 2], "data_offsets": [0, 16]},
        {"dtype": "F32", "shape": "ab", "data_offsets": [0, 16]},
        {"dtype": "F32", "shape": [4], "data_offsets": [0, "16"]},
        {"dtype": "F32", "shape": [4], "data_offsets": [-16, 0]},
        {"dtype": "F32", "shape": [4], "data_offsets": [0, 8, 16]},
        {"dtype": ["F32"], "shape": [4], "data_offsets": [0, 16]},
        {"dtype": "F4", "shape": [3], "data_offsets": [0, 1]},
        {"dtype": "F32", "shape": [10**30], "data_offsets": [0, 16]},
    ],
)
def test_entries_that_make_no_sense(tmp_path, entry):
    path = write_raw(tmp_path / "x.safetensors", json.dumps({"bad": entry}).encode(), 16)
    assert "bad" in str(refused(path))


def test_reading_loads_no_torch(tmp_path):
    path = write_tensors(tmp_path / "x.safetensors", TWO)
    code = (
        "import sys, pathlib; from quantdock.checkpoint import read_header;"
        f"read_header(pathlib.Path({str(path)!r}));"
        "assert not {'torch', 'safetensors', 'numpy'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
