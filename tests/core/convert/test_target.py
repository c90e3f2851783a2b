"""Folders that are refused before anything is read, and the room that is needed."""

from __future__ import annotations

import shutil
from types import SimpleNamespace

import pytest

from quantdock.convert.target import partial_folder, require_room, resolve_target
from quantdock.errors import TargetError


def test_a_new_folder_and_an_empty_one_are_taken(plain, tmp_path):
    assert resolve_target(tmp_path / "new" / "out", plain) == tmp_path / "new" / "out"
    (tmp_path / "empty").mkdir()
    assert resolve_target(tmp_path / "empty", plain) == tmp_path / "empty"


def test_links_are_followed(plain, tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    assert resolve_target(tmp_path / "link", plain) == tmp_path / "elsewhere"


@pytest.mark.parametrize("way", ["same", "dots", "link", "linked parent", "partial"])
def test_the_input_itself_is_refused(plain, tmp_path, way):
    (tmp_path / "link").symlink_to(plain)
    (tmp_path / "up").symlink_to(tmp_path)
    source = plain
    if way == "partial":
        source = plain.rename(tmp_path / "plain.partial")
    target = {
        "same": plain,
        "dots": plain / ".." / "plain",
        "link": tmp_path / "link",
        "linked parent": tmp_path / "up" / "plain",
        "partial": tmp_path / "plain",
    }[way]
    with pytest.raises(TargetError, match="is the folder that is to be converted") as caught:
        resolve_target(target, source)
    assert "lost while they are read" in str(caught.value)


def test_other_peoples_files_are_refused(plain, tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(TargetError, match="is a file"):
        resolve_target(tmp_path / "file", plain)
    full = tmp_path / "full"
    full.mkdir()
    (full / "photo.jpg").write_text("x")
    with pytest.raises(TargetError, match="is not empty") as caught:
        resolve_target(full, plain)
    assert "it holds photo.jpg" in str(caught.value)
    assert "full.partial" in caught.value.todo


def test_room_is_counted_before_it_is_needed(tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=2_500_000))
    require_room(tmp_path, 2_500_000, 0)
    with pytest.raises(TargetError) as caught:
        require_room(tmp_path, 7_000_000_000, 1_000_000)
    assert str(caught.value).splitlines() == [
        "There is no room for the output: it needs 7.0 GB, and 2.5 MB are free.",
        f"  counted in {tmp_path} (1.0 MB of an earlier run are kept)",
        "Free 7.0 GB, or name a folder on another disk.",
    ]
    assert (caught.value.needed, caught.value.free) == (7_000_000_000, 2_500_000)


def test_the_work_goes_on_beside_the_target(tmp_path):
    assert partial_folder(tmp_path / "a.b") == tmp_path / "a.b.partial"
