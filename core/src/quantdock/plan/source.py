"""What a plan is made of: a config's content, a config.json, or a folder, as far as it goes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quantdock.checkpoint import Checkpoint, open_checkpoint
from quantdock.checkpoint.index import checkpoint_folder
from quantdock.checkpoint.json_file import read_json
from quantdock.checkpoint.weight_files import NOTHING
from quantdock.errors import CheckpointError


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A checkpoint as far as it was read.

    ``checkpoint`` is None where there are no headers to read; ``not_yet`` says which kind of
    weight file stands there that is known and not read.
    """

    name: str
    config: Mapping[str, Any]
    folder: Path | None = None
    checkpoint: Checkpoint | None = None
    not_yet: str = ""


def read_source(source: str | Path | Mapping[str, Any]) -> Source:
    """Return what ``source`` holds.

    Raises:
        CheckpointError: the folder does not exist, or something in it is damaged or refused.
    """
    if isinstance(source, Mapping):
        return Source(name="a config", config=source)
    path = Path(source)
    if path.suffix == ".json" and (path := path.expanduser()).is_file():
        return Source(name=str(path), config=read_json(path), folder=path.parent)
    folder = checkpoint_folder(source)
    try:
        checkpoint = open_checkpoint(folder)
    except CheckpointError as error:
        return _without_headers(folder, error)
    return Source(name=str(folder), config=checkpoint.config, folder=folder, checkpoint=checkpoint)


def _without_headers(folder: Path, error: CheckpointError) -> Source:
    """Return what the JSON files say where the weights are absent or of a kind to come."""
    holds, config = error.facts.get("holds"), folder / "config.json"
    not_yet = str(error.facts.get("not_yet") or "")
    if not not_yet and not (holds == NOTHING and config.is_file()):
        raise error
    return Source(
        name=str(folder),
        config=read_json(config) if config.is_file() else {},
        folder=folder,
        not_yet=not_yet and f"known, not yet: dialect {not_yet}. {error.todo}",
    )
