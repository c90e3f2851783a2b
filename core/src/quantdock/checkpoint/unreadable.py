"""The error for a file that the system does not open, which says so of a link to nowhere."""

from __future__ import annotations

from pathlib import Path

from quantdock.errors import CheckpointError


def unreadable(path: Path, error: OSError) -> CheckpointError:
    """Return the error for ``path``, which ``error`` keeps from being read."""
    why, todo = error.strerror or str(error), "Check that the file is there and readable."
    if path.is_symlink() and not path.exists():
        why = f"it is a link to {path.readlink()}, which is not there"
        todo = "Download it again, or copy the folder with what its links point to (cp -rL)."
    return CheckpointError(f"{path} cannot be read.", why=[why], todo=todo, path=path)
