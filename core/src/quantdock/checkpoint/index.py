"""A checkpoint folder: its config.json and where each of its tensors lies. Nothing is loaded.

Every check that headers allow is made here, before any layer is built.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quantdock.checkpoint.collector import collector_paused
from quantdock.checkpoint.header import TensorEntry, read_header
from quantdock.checkpoint.json_file import read_json
from quantdock.checkpoint.weight_files import WeightFiles, find_weight_files, inside
from quantdock.errors import CheckpointError, few

_HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """One opened folder; ``tensors`` keeps the order of files and of bytes within them."""

    folder: Path
    config: dict[str, Any]
    tensors: Mapping[str, TensorEntry]
    warnings: tuple[str, ...] = ()


@collector_paused()
def open_checkpoint(path: str | Path) -> Checkpoint:
    """Return the checkpoint in folder ``path``, its headers read and checked.

    Raises:
        CheckpointError: a file is missing, damaged, unsafe or of a kind that is not read; the
            text names it. ``not_yet`` is set where the kind is known and comes later.
    """
    folder = checkpoint_folder(path)
    files = find_weight_files(folder)
    config = read_json(folder / "config.json")
    tensors, warnings = _indexed(files) if files.index else _unindexed(files)
    return Checkpoint(folder=folder, config=config, tensors=tensors, warnings=tuple(warnings))


def checkpoint_folder(path: str | Path) -> Path:
    """Return ``path`` as a folder; raises CheckpointError if it is none."""
    try:
        folder = Path(path).expanduser()
        if folder.is_dir():
            next(folder.iterdir(), None)  # the names of its files can be read
            return folder
        exists = folder.exists()
    except (OSError, RuntimeError) as error:  # RuntimeError: ~name of nobody
        raise CheckpointError(
            f"{path} cannot be read.",
            why=[getattr(error, "strerror", None) or str(error)],
            todo="Check the path and its permissions.",
            path=Path(path),
        ) from error
    if exists:
        raise CheckpointError(
            f"{folder} is a file, not a checkpoint folder.",
            todo=f"Name the folder that holds config.json and the weights: {folder.parent}",
            path=folder,
        )
    raise CheckpointError(
        f"There is no folder {folder}.",
        why=["checkpoints are read from a local folder"],
        todo="Check the path, or fetch a hub model first: "
        f"hf download {path if _HUB_NAME.fullmatch(str(path)) else 'NAME'} --local-dir FOLDER",
        path=folder,
    )


def _unindexed(files: WeightFiles) -> tuple[dict[str, TensorEntry], list[str]]:
    """Return the tensors of every weight file; a name in two of them is an error."""
    tensors: dict[str, TensorEntry] = {}
    for file in files.shards:
        entries = read_header(file)
        todo = "Delete the file that does not belong to the model; no index says which."
        _refuse_twice(tensors, entries, file, todo)
        tensors |= entries
    return tensors, []


def _refuse_twice(
    tensors: Mapping[str, TensorEntry], more: Mapping[str, TensorEntry], file: Path, todo: str
) -> None:
    """Raise if ``more``, the tensors of ``file``, are among ``tensors`` already."""
    if twice := more.keys() & tensors.keys():
        first = next(name for name in more if name in twice)
        raise CheckpointError(
            f"{len(twice)} tensors are stored twice in {file.parent}.",
            why=[f"{first} is in {tensors[first].file.name} and in {file.name}"],
            todo=todo,
            path=file,
        )


def _indexed(files: WeightFiles) -> tuple[dict[str, TensorEntry], list[str]]:
    """Return the tensors that the index names, from the shards it names."""
    index, folder = files.index, files.folder
    assert index is not None, "called for folders with an index only"
    weight_map = _weight_map(index)
    named = dict.fromkeys(weight_map.values())
    shards = {name: inside(folder, name, index) for name in named}
    _refuse_missing_shards(index, shards, weight_map)
    headers = {name: read_header(shard) for name, shard in shards.items()}
    _refuse_missing_tensors(index, headers, weight_map)
    tensors: dict[str, TensorEntry] = {}
    warnings = []
    for name, header in headers.items():
        unlisted = [tensor for tensor in header if tensor not in weight_map]
        duplicates = [tensor for tensor in header if weight_map.get(tensor, name) != name]
        for tensor in duplicates:
            del header[tensor]
        todo = f"Name in {index.name} which file counts, or download index and files again."
        _refuse_twice(tensors, header, shards[name], todo)
        tensors |= header
        if unlisted:
            warnings.append(f"{name} holds tensors that {index.name} lacks: {few(unlisted)}")
        if duplicates:
            warnings.append(_ignored(name, duplicates, index))
    return tensors, [*warnings, *_duplicates_outside(files, set(named), weight_map)]


def _weight_map(index: Path) -> dict[str, str]:
    weight_map = read_json(index).get("weight_map")
    if (
        not isinstance(weight_map, dict)
        or not weight_map
        or not all(isinstance(name, str) for name in weight_map.values())
    ):
        raise CheckpointError(
            f"{index} does not say where the tensors are.",
            why=["an object weight_map, tensor name to file name, is expected"],
            todo="Download the index again, or delete it if one file holds all tensors.",
            path=index,
        )
    return weight_map


def _refuse_missing_shards(
    index: Path, shards: Mapping[str, Path], weight_map: Mapping[str, str]
) -> None:
    missing = [name for name, shard in shards.items() if not shard.is_file()]
    if missing:
        lost = [tensor for tensor, name in weight_map.items() if name in missing]
        raise CheckpointError(
            f"{index} names {len(missing)} of {len(shards)} files that are not there: "
            f"{few(missing)}.",
            why=[f"{len(lost):,} tensors would be missing: {few(lost)}"],
            todo="Download the missing files.",
            path=index,
            names=tuple(missing),
        )


def _refuse_missing_tensors(
    index: Path,
    headers: Mapping[str, Mapping[str, TensorEntry]],
    weight_map: Mapping[str, str],
) -> None:
    lost = [tensor for tensor, name in weight_map.items() if tensor not in headers[name]]
    if lost:
        raise CheckpointError(
            f"{index} names {len(lost):,} tensors that their files lack: {few(lost)}.",
            why=[f"{tensor} is not in {weight_map[tensor]}" for tensor in lost[:5]],
            todo="Index and files are of different versions: download both again.",
            path=index,
            names=tuple(lost),
        )


def _duplicates_outside(
    files: WeightFiles, named: set[str], weight_map: Mapping[str, str]
) -> list[str]:
    """Return a warning for each file beside the index that holds tensors of the model too."""
    index = files.index
    assert index is not None, "called for folders with an index only"
    warnings = []
    for file in files.shards:
        if file.name in named:
            continue
        try:
            duplicates = [tensor for tensor in read_header(file) if tensor in weight_map]
        except CheckpointError as error:
            warnings.append(f"{file.name} is not in {index.name} and not readable: {error.what}")
            continue
        if duplicates:
            warnings.append(_ignored(file.name, duplicates, index))
    return warnings


def _ignored(name: str, tensors: list[str], index: Path) -> str:
    return (
        f"{name} holds tensors that {index.name} takes from another file; "
        f"its copies are ignored: {few(tensors)}"
    )
