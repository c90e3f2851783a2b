"""The folder beside the target: kept, emptied, refused, shared by nobody, renamed at the end."""

from __future__ import annotations

import pytest

from quantdock.convert.manifest import Manifest
from quantdock.convert.workspace import MANIFEST, open_workspace
from quantdock.errors import TargetError


def manifest(to="mxfp8"):
    return Manifest(source="/in", options={"to": to}, files={"a": [1, 2]}, config="0")


@pytest.fixture
def target(tmp_path):
    return tmp_path / "deep" / "out"


def test_work_is_kept_for_the_same_request(target):
    with open_workspace(target, manifest()) as space:
        assert space.notes == ()
        (space.folder / "a").write_text("done")
    with open_workspace(target, manifest()) as space:
        assert space.notes == (f"going on in {space.folder}",)
        assert (space.folder / "a").read_text() == "done"


def test_work_for_another_request_is_deleted_and_told(target):
    with open_workspace(target, manifest()) as space:
        (space.folder / "a").write_text("done")
        (space.folder / "b").mkdir()
    with open_workspace(target, manifest("fp8_per_tensor")) as space:
        assert space.notes == ("starting anew, because to was 'mxfp8' and is 'fp8_per_tensor'",)
        assert [path.name for path in space.folder.iterdir()] == [MANIFEST]
    with open_workspace(target, manifest("fp8_per_tensor")) as space:
        assert space.notes[0].startswith("going on")


def test_a_broken_manifest_starts_anew(target):
    with open_workspace(target, manifest()) as space:
        (space.folder / MANIFEST).write_text("{")
    with open_workspace(target, manifest()) as space:
        assert space.notes[0].startswith("starting anew")


def test_a_foreign_folder_is_refused(target):
    partial = target.with_name("out.partial")
    partial.mkdir(parents=True)
    (partial / "photo.jpg").write_text("x")
    with (
        pytest.raises(
            TargetError,
            match=r"out\.partial stands where[\s\S]*it holds photo\.jpg",
        ),
        open_workspace(target, manifest()),
    ):
        pass


def test_two_at_a_time_are_refused(target):
    pytest.importorskip("fcntl", reason="needs a system with file locks")
    with (
        open_workspace(target, manifest()),
        pytest.raises(TargetError, match="Another process is writing"),
        open_workspace(target, manifest()),
    ):
        pass
    with open_workspace(target, manifest()) as space:
        assert space.notes[0].startswith("going on")


def test_a_folder_that_cannot_be_made_is_told(tmp_path):
    (tmp_path / "deep").write_text("a file")
    with (
        pytest.raises(
            TargetError, match=r"(?s)Nothing can be written to .*out.partial: Not a directory"
        ),
        open_workspace(tmp_path / "deep" / "out", manifest()),
    ):
        pass


@pytest.mark.parametrize("exists", [False, True])
def test_finishing_gives_it_the_name(target, exists):
    if exists:
        target.mkdir(parents=True)
    with open_workspace(target, manifest()) as space:
        (space.folder / "a").write_text("done")
        assert not exists or not list(target.iterdir())
        space.finish()
    assert [path.name for path in target.iterdir()] == ["a"]
    assert not space.folder.exists()
