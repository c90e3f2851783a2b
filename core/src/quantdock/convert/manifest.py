"""Manifest: what a conversion is made from and how, so that a later run knows its own work."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from quantdock import __version__
from quantdock.checkpoint import Checkpoint
from quantdock.convert.request import Request

_FORMAT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """The facts on which every byte of the output depends.

    ``files`` maps the input's weight files to size and time of change; ``config`` is a digest of
    its config.json.
    """

    source: str
    options: Mapping[str, Any]
    files: Mapping[str, list[int]]
    config: str
    version: str = __version__
    format: int = _FORMAT

    def to_json(self) -> str:
        """Return the manifest as it is kept."""
        return json.dumps({name: getattr(self, name) for name in self.__slots__}, indent=2)

    def changes_since(self, old: Mapping[str, Any]) -> list[str]:
        """Return what differs from ``old``, the manifest of an earlier run; empty: nothing."""
        changes = []
        if old.get("format") != self.format or old.get("version") != self.version:
            changes.append(f"it was begun with QuantDock {old.get('version', 'of another kind')}")
        if old.get("source") != self.source:
            changes.append(f"the input was {old.get('source')}")
        options = old.get("options") or {}
        changes += [
            f"{name} was {options.get(name)!r} and is {value!r}"
            for name, value in self.options.items()
            if options.get(name) != value
        ]
        files = old.get("files") or {}
        changed = [
            name for name in {**files, **self.files} if files.get(name) != self.files.get(name)
        ]
        if old.get("config") != self.config:
            changed.append("config.json")
        return changes + [f"{name} of the input has changed" for name in changed]


def make_manifest(checkpoint: Checkpoint, request: Request) -> Manifest:
    """Return the manifest of a conversion of ``checkpoint`` as its files are now."""
    files = dict.fromkeys(entry.file for entry in checkpoint.tensors.values())
    return Manifest(
        source=str(checkpoint.folder.resolve()),
        options=request.to_json(),
        files={file.name: _fingerprint(file.stat()) for file in files},
        config=hashlib.sha256((checkpoint.folder / "config.json").read_bytes()).hexdigest(),
    )


def _fingerprint(status: Any) -> list[int]:
    return [status.st_size, status.st_mtime_ns]
