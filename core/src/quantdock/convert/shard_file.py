"""Writing one shard: tensor by tensor to a file beside, which takes its name once it is whole."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

import torch
from torch import Tensor

from quantdock.checkpoint import TensorEntry
from quantdock.convert.part import Part
from quantdock.convert.shard import Shard
from quantdock.errors import CheckpointError
from quantdock.loading.memory import MemoryKeeper
from quantdock.numerics import dtype_name

UNFINISHED = ".unfinished"  # follows the name of a file that is being written
_CHUNK_BYTES = 16 << 20


def write_shard(shard: Shard, folder: Path, advance: Callable[[int], None]) -> None:
    """Write ``shard`` into ``folder``; memory holds about one tensor at a time.

    Args:
        advance: told how many bytes of the input were dealt with.
    """
    path = folder / shard.name
    unfinished = path.with_name(path.name + UNFINISHED)
    memory = MemoryKeeper()
    with unfinished.open("wb") as file:
        file.truncate(shard.size)
        file.write(shard.header)
        for part in shard.parts:
            if part.copied is not None:
                _copy(part.copied, file, shard, advance)
            else:
                _write_made(part, file, shard)
                memory.note(part.num_bytes)
                advance(part.num_bytes)
        file.flush()
        os.fsync(file.fileno())
    unfinished.replace(path)


def is_whole(shard: Shard, folder: Path) -> bool:
    """Return whether ``folder`` holds the finished file: its size and header are as planned."""
    path = folder / shard.name
    if not path.is_file() or path.stat().st_size != shard.size:
        return False
    with path.open("rb") as file:
        return file.read(len(shard.header)) == shard.header


def _copy(entry: TensorEntry, file: BinaryIO, shard: Shard, advance: Callable[[int], None]) -> None:
    file.seek(shard.starts[entry.name])
    for chunk in _chunks(entry):
        file.write(chunk)
        advance(len(chunk))


def _chunks(entry: TensorEntry) -> Iterator[bytes]:
    """Yield the bytes of a stored tensor.

    Raises:
        CheckpointError: the file is shorter than when it was opened.
    """
    with entry.file.open("rb") as source:
        source.seek(entry.start)
        left = entry.num_bytes
        while left:
            chunk = source.read(min(left, _CHUNK_BYTES))
            if not chunk:
                raise CheckpointError(
                    f"{entry.file} ends inside tensor {entry.name}.",
                    why=[f"{left:,} of its {entry.num_bytes:,} bytes are not there any more"],
                    todo="The file changed while it was read: copy or download it again.",
                    path=entry.file,
                )
            left -= len(chunk)
            yield chunk


def _write_made(part: Part, file: BinaryIO, shard: Shard) -> None:
    assert part.make is not None, "a part is copied or made"
    made = part.make()
    for name, stored in part.outputs.items():
        tensor = made[name]
        assert (dtype_name(tensor.dtype), tuple(tensor.shape)) == (stored.dtype, stored.shape), (
            f"{name} was announced as {stored}"
        )
        file.seek(shard.starts[name])
        file.write(_raw(tensor))


def _raw(tensor: Tensor) -> memoryview:
    """Return the bytes of ``tensor`` in row-major order."""
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data
