"""JSON files of a checkpoint: read whole, with errors that name the file, line and column."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from quantdock.checkpoint.unreadable import unreadable
from quantdock.errors import CheckpointError

# What a download leaves instead of a file, by its first bytes.
_STAND_INS = (
    (b"version https://git-lfs", "a Git-LFS pointer, not the file itself"),
    (b"<!doctype", "an HTML page"),
    (b"<html", "an HTML page"),
)
_FETCH_AGAIN = (
    "Download the file again (in a git clone: `git lfs pull`; from a hub: `hf download`)."
)


def refuse_stand_in(path: Path, start: bytes) -> None:
    """Raise if ``start``, the first bytes of ``path``, are those of a page or a pointer."""
    beginning = start.lstrip().lower()
    for mark, what in _STAND_INS:
        if beginning.startswith(mark):
            raise CheckpointError(
                f"{path} is {what}.",
                why=[f"the file has {path.stat().st_size:,} bytes and begins with {start[:40]!r}"],
                todo=_FETCH_AGAIN,
                path=path,
            )


def read_json(path: Path) -> dict[str, Any]:
    """Return the object that ``path`` holds.

    Raises:
        CheckpointError: the file cannot be read, is no JSON, or holds something else.
    """
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise unreadable(path, error) from error
    refuse_stand_in(path, raw[:64])
    try:
        content = json.loads(raw.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise _broken(path, raw, error) from error
    if not isinstance(content, dict):
        raise CheckpointError(
            f"{path} holds a JSON {type(content).__name__}, not an object.",
            todo=_FETCH_AGAIN,
            path=path,
        )
    return content


def _broken(path: Path, raw: bytes, error: Exception) -> CheckpointError:
    where, why = "", str(error)
    if isinstance(error, json.JSONDecodeError):
        where, why = f" (line {error.lineno}, column {error.colno})", error.msg
    elif isinstance(error, RecursionError):
        why = "it is nested too deeply"
    return CheckpointError(
        f"{path} is not valid JSON{where}.",
        why=[f"{why}; the file has {len(raw):,} bytes"],
        todo="Correct the file there, or download it again.",
        path=path,
    )
