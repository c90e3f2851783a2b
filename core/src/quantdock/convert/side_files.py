"""The files beside config and weights: tokenizer, templates, generation settings, model code."""

from __future__ import annotations

import shutil
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

# Weights in other forms: those of the model as it was.
_WEIGHTS = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".gguf", ".onnx", ".h5", ".msgpack")
# What is written anew.
_CONFIG = "config.json"
_ANEW = (".safetensors", ".index.json")


@dataclass(frozen=True, slots=True, kw_only=True)
class SideFiles:
    """What is copied, and the names of what is left behind."""

    copied: tuple[Path, ...]
    left: tuple[str, ...]

    @property
    def num_bytes(self) -> int:
        """Return the bytes of all files that are copied."""
        return sum(path.stat().st_size for path in self.copied)


def find_side_files(folder: Path, drop: Collection[str] = ()) -> SideFiles:
    """Return the files of ``folder`` that belong to any form of the model; ``drop`` by name.

    Folders within it, and files whose names begin with a dot, are left behind.
    """
    copied, left = [], []
    for path in sorted(folder.iterdir()):
        name = path.name
        if name.startswith(".") or name.endswith(_ANEW) or name in (_CONFIG, *drop):
            continue
        if path.is_file() and path.suffix not in _WEIGHTS:
            copied.append(path)
        else:
            left.append(f"{name}/" if path.is_dir() else name)
    return SideFiles(copied=tuple(copied), left=tuple(left))


def copy_side_files(files: SideFiles, folder: Path) -> None:
    """Copy the files into ``folder``; links are followed."""
    for path in files.copied:
        shutil.copyfile(path, folder / path.name)
