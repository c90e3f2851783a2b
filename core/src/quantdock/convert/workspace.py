"""Workspace: the folder beside the target that holds a conversion until it is complete."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from quantdock.convert.manifest import Manifest
from quantdock.convert.target import partial_folder
from quantdock.errors import TargetError, few

try:
    import fcntl
except ImportError:  # a system without such locks
    fcntl = None  # type: ignore[assignment]

MANIFEST = "quantdock-convert.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Workspace:
    """An open workspace; ``notes`` say what became of an earlier run's work."""

    folder: Path
    target: Path
    notes: tuple[str, ...]

    def finish(self) -> None:
        """Give the folder the target's name; from then on it is a checkpoint like any other."""
        _sync(self.folder)
        if self.target.exists():
            self.target.rmdir()  # empty, or it would have been refused
        self.folder.rename(self.target)
        _sync(self.target.parent)
        (self.target / MANIFEST).unlink()


@contextmanager
def open_workspace(target: Path, manifest: Manifest) -> Iterator[Workspace]:
    """Open the workspace of ``target``; what an earlier run left of the same work stays in it.

    Raises:
        TargetError: the folder cannot be made, is in use by another process, or holds something
            else.
    """
    folder = partial_folder(target)
    _refuse_foreign(folder)
    with _open_manifest(folder) as file:
        _lock(file, folder)
        file.seek(0)
        notes = _reuse(folder, file.read(), manifest)
        file.truncate(0)
        file.write(manifest.to_json())
        file.flush()
        yield Workspace(folder=folder, target=target, notes=notes)


def _open_manifest(folder: Path) -> TextIO:
    """Return the manifest of ``folder``, which is made where it is not there."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return (folder / MANIFEST).open("a+", encoding="utf-8")
    except OSError as error:
        raise TargetError(
            f"Nothing can be written to {folder}.",
            why=[f"{error.filename}: {error.strerror}"],
            todo="Name a folder where you may write.",
            path=folder,
        ) from error


def _refuse_foreign(folder: Path) -> None:
    held = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    if (held and MANIFEST not in held) or (folder.exists() and not folder.is_dir()):
        raise TargetError(
            f"{folder} stands where a conversion would work, and is none.",
            why=[f"it holds {few(held)}" if held else "it is a file"],
            todo="Delete it, or name another folder for the output.",
            path=folder,
        )


def _lock(file: TextIO, folder: Path) -> None:
    """Hold the workspace until ``file`` is closed; the system frees it if the process dies."""
    if fcntl is None:
        return
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        raise TargetError(
            f"Another process is writing to {folder}.",
            why=["the same conversion is running already"],
            todo="Wait for it, or end it; its finished files are kept.",
            path=folder,
        ) from error


def _reuse(folder: Path, text: str, manifest: Manifest) -> tuple[str, ...]:
    """Return a note on an earlier run's work, after deleting it where it was another."""
    try:
        old: Any = json.loads(text) if text else None
    except ValueError:
        old = {}
    if old is None:
        return ()
    changes = manifest.changes_since(old if isinstance(old, dict) else {})
    if not changes:
        return (f"going on in {folder}",)
    for path in folder.iterdir():
        if path.name != MANIFEST:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    return (f"starting anew, because {'; '.join(changes)}",)


def _sync(folder: Path) -> None:
    """Make the names in ``folder`` last; without effect where folders cannot be opened."""
    try:
        handle = os.open(folder, os.O_RDONLY)
    except OSError:
        return
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
