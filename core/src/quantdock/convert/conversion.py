"""A conversion: planned from headers alone, then carried out file by file.

``plan_conversion`` reads no weight and writes nothing; ``Conversion.run`` may be interrupted at
any moment and goes on where it was when it is run again.
"""

from __future__ import annotations

import errno
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quantdock.checkpoint import Checkpoint, open_checkpoint
from quantdock.checkpoint.weight_files import INDEX
from quantdock.convert.goals import USUAL, Integers
from quantdock.convert.manifest import Manifest, make_manifest
from quantdock.convert.planning import FindLayers, plan_work
from quantdock.convert.request import Request, read_request
from quantdock.convert.shard import Shard, lay_out, make_index
from quantdock.convert.shard_file import is_whole, write_shard
from quantdock.convert.side_files import SideFiles, copy_side_files, find_side_files
from quantdock.convert.target import require_room, resolve_target
from quantdock.convert.work import Work
from quantdock.convert.workspace import Workspace, open_workspace
from quantdock.errors import CheckpointError, TargetError, few

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)


def _unwatched(num_bytes: int) -> None:
    """Take no notice of progress."""


def _names_only(checkpoint: Checkpoint) -> None:
    """Let the names of the tensors tell which layers are linear."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What a conversion came to; bytes are of the weights, ``warnings`` of what may be amiss."""

    target: Path
    num_layers: int
    num_files: int
    num_kept: int  # files that an earlier run had written
    bytes_before: int
    bytes_after: int
    notes: tuple[str, ...]
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversion:
    """A conversion that is ready to run."""

    checkpoint: Checkpoint
    target: Path
    request: Request
    manifest: Manifest
    work: Work
    shards: tuple[Shard, ...]
    side_files: SideFiles

    @property
    def num_bytes(self) -> int:
        """Return how many bytes of the input there are to go through."""
        return sum(shard.num_bytes_read for shard in self.shards)

    def run(self, advance: Callable[[int], None] = _unwatched) -> Report:
        """Write the output and return what it came to.

        Args:
            advance: told how many bytes of the input were dealt with, ``num_bytes`` in all.
        Raises:
            TargetError: no room, or the folder is in use.
            MismatchError: a value would change, and that was to be refused.
            CheckpointError: the input changed meanwhile.
        """
        self._require_exact()
        with open_workspace(self.target, self.manifest) as workspace:
            kept = {s.name: s for s in self.shards if is_whole(s, workspace.folder)}
            self._require_room(workspace, kept.values())
            try:
                for shard in self.shards:
                    if shard.name in kept:
                        self._count(shard)
                        advance(shard.num_bytes_read)
                    else:
                        write_shard(shard, workspace.folder, advance)
                self._refuse_changes()
                self._write_rest(workspace)
            except OSError as error:
                raise _not_written(error, workspace) from error
            workspace.finish()
        return self._report(workspace, len(kept))

    def _require_room(self, workspace: Workspace, kept: Iterable[Shard]) -> None:
        done = sum(shard.size for shard in kept)
        needed = sum(shard.size for shard in self.shards) - done + self.side_files.num_bytes
        require_room(workspace.folder, needed, done)

    def _require_exact(self) -> None:
        """Make everything once, writing nothing, where values may change and must not."""
        if self.request.exact and self.work.tally is not None:
            for shard in self.shards:
                self._count(shard)
            self.work.tally.require_exact(self.checkpoint.folder)

    def _count(self, shard: Shard) -> None:
        """Make what an earlier run has written, where what changes is counted."""
        for part in shard.parts if self.work.tally is not None else ():
            if part.make is not None:
                part.make()

    def _refuse_changes(self) -> None:
        now = make_manifest(self.checkpoint, self.request)
        if now != self.manifest:
            raise CheckpointError(
                f"{self.checkpoint.folder} changed while it was converted.",
                why=now.changes_since(json.loads(self.manifest.to_json())),
                todo="Run the conversion again.",
                path=self.checkpoint.folder,
            )

    def _write_rest(self, workspace: Workspace) -> None:
        """Write what makes a folder of weights a checkpoint, config.json last."""
        copy_side_files(self.side_files, workspace.folder)
        if len(self.shards) > 1:
            _write_json(workspace.folder / INDEX, make_index(self.shards))
        _write_json(workspace.folder / "config.json", self.work.config)

    def _report(self, workspace: Workspace, num_kept: int) -> Report:
        counted = () if self.work.tally is None else tuple(self.work.tally.notes())
        return Report(
            target=self.target,
            num_layers=self.work.num_layers,
            num_files=len(self.shards),
            num_kept=num_kept,
            bytes_before=sum(entry.num_bytes for entry in self.checkpoint.tensors.values()),
            bytes_after=sum(shard.size for shard in self.shards),
            notes=(*workspace.notes, *self.work.notes, *counted, *self._left_behind()),
            warnings=self.work.warnings,
        )

    def _left_behind(self) -> tuple[str, ...]:
        left = self.side_files.left
        return (f"not copied: {few(left)}",) if left else ()


def plan_conversion(
    source: str | Path,
    target: str | Path,
    to: str,
    *,
    ignore: Sequence[str] = (),
    choices: Mapping[str, str] | None = None,
    integers: Integers = USUAL,
    max_shard_bytes: int | None = None,
    exact: bool = False,
    find_layers: FindLayers = _names_only,
) -> Conversion:
    """Return the conversion of checkpoint folder ``source`` into the new folder ``target``.

    Args:
        to: a key of GOALS; or "none", to decode a quantized checkpoint to plain weights. A
            quantized input is moved to another dialect as it is, or refused.
        ignore: patterns of layers to copy as they are.
        choices: pattern -> another scheme, or "none", for the layers it matches.
        integers: bits, group size and symmetry, where ``to`` stands for integers.
        max_shard_bytes: of one file; None: one file for each of the input.
        exact: refuse to requantize where a value would change.
        find_layers: asks the model's classes for its layers; the usual one trusts names.
    Raises:
        QuantDockError: the text says what is wrong, why, and what to do.
    """
    request = read_request(to, ignore, choices, max_shard_bytes, integers, exact=exact)
    checkpoint = open_checkpoint(source)
    real_target = resolve_target(target, checkpoint.folder)
    manifest = make_manifest(checkpoint, request)
    work = plan_work(checkpoint, request, find_layers)
    side_files = find_side_files(checkpoint.folder, work.dropped)
    return Conversion(
        checkpoint=checkpoint,
        target=real_target,
        request=request,
        manifest=manifest,
        work=work,
        shards=lay_out(work.parts, checkpoint.folder, max_shard_bytes),
        side_files=side_files,
    )


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _not_written(error: OSError, workspace: Workspace) -> TargetError:
    if error.errno in _NO_ROOM:
        what, todo = "The disk is full", "Free some space and run the same command again"
    else:
        what, todo = "Writing failed", "Remove the cause and run the same command again"
    return TargetError(
        f"{what}: {workspace.folder} is not complete.",
        why=[error.strerror or str(error)],
        todo=f"{todo}; finished files are kept.",
        path=workspace.folder,
    )
