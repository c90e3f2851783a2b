"""JSON files with errors that say where."""

from __future__ import annotations

import pytest

from quantdock.checkpoint.json_file import read_json
from quantdock.errors import CheckpointError


def test_an_object_is_read_with_or_without_a_byte_order_mark(tmp_path):
    path = tmp_path / "config.json"
    path.write_bytes(b'\xef\xbb\xbf{"a": 1}')
    assert read_json(path) == {"a": 1}


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b'{"a": 1,\n "b": }', "is not valid JSON (line 2, column 7)"),
        (b"\xff\xfe{", "is not valid JSON"),
        (b"[" * 100_000, "nested too deeply"),
        (b"[1]", "holds a JSON list, not an object"),
        (b"<!doctype html>", "is an HTML page"),
        (b"version https://git-lfs.github.com/spec/v1", "is a Git-LFS pointer"),
        (b"", "the file has 0 bytes"),
    ],
)
def test_what_is_no_object_names_the_file(tmp_path, content, expected):
    path = tmp_path / "config.json"
    path.write_bytes(content)
    with pytest.raises(CheckpointError) as caught:
        read_json(path)
    assert expected in str(caught.value) and str(path) in str(caught.value)
    assert caught.value.path == path


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(CheckpointError, match="cannot be read"):
        read_json(tmp_path / "config.json")
