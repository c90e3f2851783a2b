"""The folder to be written: what it must not be, and whether it has room."""

from __future__ import annotations

import shutil
from pathlib import Path

from quantdock.errors import TargetError, few
from quantdock.plan.plan import show_bytes

PARTIAL = ".partial"  # follows the target's name while the conversion runs


def resolve_target(target: str | Path, source: Path) -> Path:
    """Return the real path of the folder to be written; links are followed.

    Raises:
        TargetError: it is the input itself, a file, or a folder with something in it.
    """
    path = Path(target).expanduser().resolve()
    real_source = source.resolve()
    for taken in (path, partial_folder(path)):
        if taken == real_source or (taken.exists() and taken.samefile(real_source)):
            raise TargetError(
                f"{target} is the folder that is to be converted.",
                why=[f"both are {real_source}", "its weights would be lost while they are read"],
                todo="Name another folder for the output.",
                path=path,
            )
    if path.exists() and not path.is_dir():
        raise TargetError(
            f"{target} is a file.", todo="Name a folder that does not exist yet.", path=path
        )
    if path.is_dir() and (held := sorted(entry.name for entry in path.iterdir())):
        raise TargetError(
            f"{target} is not empty.",
            why=[f"it holds {few(held)}"],
            todo="Delete it, or name a folder that does not exist yet. (An interrupted conversion "
            f"is kept in {path.name}{PARTIAL} and goes on from there.)",
            path=path,
        )
    return path


def partial_folder(target: Path) -> Path:
    """Return the folder that a conversion to ``target`` works in; renamed when it is complete."""
    return target.with_name(target.name + PARTIAL)


def require_room(folder: Path, needed: int, kept: int) -> None:
    """Raise if the file system of ``folder`` has less than ``needed`` bytes left.

    Args:
        kept: bytes that an earlier run has written and that are used again.
    Raises:
        TargetError: with both numbers.
    """
    free = shutil.disk_usage(folder).free
    if needed > free:
        also = f" ({show_bytes(kept)} of an earlier run are kept)" if kept else ""
        raise TargetError(
            f"There is no room for the output: it needs {show_bytes(needed)}, and "
            f"{show_bytes(free)} are free.",
            why=[f"counted in {folder}{also}"],
            todo=f"Free {show_bytes(needed - free)}, or name a folder on another disk.",
            path=folder,
            needed=needed,
            free=free,
        )
