"""Shards: which tensors go into which file of the output, and every file's header, byte by byte.

A header is known before anything is computed, so a file can be written front to back without its
tensors ever being in memory together, and a finished file can be told from a broken one.
Source of the format: https://github.com/huggingface/safetensors#format.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from quantdock.checkpoint.weight_files import SINGLE
from quantdock.convert.part import Part
from quantdock.formats import DTYPES
from quantdock.schemes import StoredTensor

_ALIGNMENT = 8  # of the first byte of data


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """One safetensors file to be written.

    Attributes:
        header: the bytes before the data.
        starts: tensor name -> where its bytes begin in the file.
        size: of the whole file, in bytes.
    """

    name: str
    parts: tuple[Part, ...]
    header: bytes
    starts: Mapping[str, int]
    size: int

    @property
    def num_bytes_read(self) -> int:
        """Return how many bytes of the input the shard is made of."""
        return sum(part.num_bytes for part in self.parts)


def lay_out(parts: Sequence[Part], folder: Path, max_shard_bytes: int | None) -> tuple[Shard, ...]:
    """Return the files for ``parts``: those of the input, or such as hold at most so many bytes.

    A part is never divided; one that is larger than the limit has a file to itself.

    Args:
        folder: that of the input; its files keep their names.
    """
    if max_shard_bytes is None:
        groups = _by_input(parts, folder)
    else:
        groups = dict(_by_size(parts, max_shard_bytes))
    if len(groups) == 1:
        groups = {SINGLE: parts}
    return tuple(make_shard(name, group) for name, group in groups.items())


def make_shard(name: str, parts: Sequence[Part]) -> Shard:
    """Return the shard of ``parts``; tensors of wide dtypes come first, so that each is aligned."""
    tensors = [item for part in parts for item in part.outputs.items()]
    tensors.sort(key=lambda item: -DTYPES[item[1].dtype].bits)
    described: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    starts, end = {}, 0
    for tensor, stored in tensors:
        starts[tensor], end = end, end + num_bytes(stored)
        described[tensor] = {
            "dtype": DTYPES[stored.dtype].header,
            "shape": list(stored.shape),
            "data_offsets": [starts[tensor], end],
        }
    text = json.dumps(described, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    header = struct.pack("<Q", len(text)) + text
    return Shard(
        name=name,
        parts=tuple(parts),
        header=header,
        starts={tensor: len(header) + start for tensor, start in starts.items()},
        size=len(header) + end,
    )


def make_index(shards: Iterable[Shard]) -> dict[str, Any]:
    """Return the content of the index file: where each tensor is, and how many bytes they take."""
    weight_map: dict[str, str] = {}
    total = 0
    for shard in shards:
        weight_map |= dict.fromkeys(shard.starts, shard.name)
        total += shard.size - len(shard.header)
    return {
        "metadata": {"total_size": total},
        "weight_map": {name: weight_map[name] for name in sorted(weight_map)},
    }


def num_bytes(stored: StoredTensor) -> int:
    """Return the bytes of a tensor."""
    return DTYPES[stored.dtype].bits * prod(stored.shape) // 8


def _by_input(parts: Sequence[Part], folder: Path) -> dict[str, Sequence[Part]]:
    groups: dict[str, list[Part]] = {}
    for part in parts:
        name = "-".join(part.file.relative_to(folder).parts)
        groups.setdefault(name, []).append(part)
    return dict(groups)


def _by_size(parts: Sequence[Part], most: int) -> Iterator[tuple[str, Sequence[Part]]]:
    groups: list[list[Part]] = []
    room = 0
    for part in parts:
        size = sum(map(num_bytes, part.outputs.values()))
        if not groups or size > room:
            groups.append([])
            room = most
        groups[-1].append(part)
        room -= size
    for number, group in enumerate(groups, 1):
        yield f"model-{number:05d}-of-{len(groups):05d}.safetensors", group
