"""Headers of safetensors files: where each tensor lies, checked against the size of the file.

A file is 8 bytes of length (little endian), that many bytes of JSON, then the data without a gap.
Source: the format's README, https://github.com/huggingface/safetensors#format.
"""

from __future__ import annotations

import json
import struct
from functools import lru_cache
from math import prod
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

from quantdock.checkpoint.json_file import refuse_stand_in
from quantdock.checkpoint.unreadable import unreadable
from quantdock.errors import CheckpointError
from quantdock.formats.dtypes import BY_HEADER
from quantdock.schemes import StoredTensor

MAX_HEADER_BYTES = 100_000_000  # the limit of the format's own reader
_PREFIX_BYTES = 8
_BITS = {header: dtype.bits for header, dtype in BY_HEADER.items()}
_NAMES = {header: dtype.name for header, dtype in BY_HEADER.items()}
_FETCH_AGAIN = "Download the file again; a broken download is the usual cause."


class TensorEntry(NamedTuple):
    """One tensor of one file: bytes ``[start, end)`` of ``file``, counted from its beginning.

    A tuple, not a dataclass: a large model has 100,000 of them, read whenever it is opened.
    """

    name: str
    dtype: str  # key of formats.DTYPES
    shape: tuple[int, ...]
    file: Path
    start: int
    end: int

    @property
    def num_bytes(self) -> int:
        """Return how many bytes the tensor takes in the file."""
        return self.end - self.start

    @property
    def stored(self) -> StoredTensor:
        """Return dtype and shape alone."""
        return _stored(self.dtype, self.shape)


@lru_cache(maxsize=4096)
def _stored(dtype: str, shape: tuple[int, ...]) -> StoredTensor:
    return StoredTensor(dtype=dtype, shape=shape)


def read_header(path: Path) -> dict[str, TensorEntry]:
    """Return the tensors of a safetensors file, by name, in the order of their bytes.

    Nothing of the data is read. What is returned fits the file exactly: no tensor ends behind its
    last byte, none overlaps another, and each has the bytes that its dtype and shape need.

    Raises:
        CheckpointError: the file is missing, cut short, damaged, or no safetensors file.
    """
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(0)
            length = _header_length(path, file.read(64), size)
            file.seek(_PREFIX_BYTES)
            raw = file.read(length)
    except OSError as error:
        raise unreadable(path, error) from error
    described = _parse(path, raw)
    entries = _entries(path, described, _PREFIX_BYTES + length)
    entries.sort(key=attrgetter("start", "end"))
    _check_layout(path, entries, _PREFIX_BYTES + length, size)
    return {entry.name: entry for entry in entries}


def _header_length(path: Path, start: bytes, size: int) -> int:
    refuse_stand_in(path, start)
    if size < _PREFIX_BYTES:
        raise _damaged(
            path, "is too short for a safetensors file", f"at least 8 bytes expected, {size} found"
        )
    (length,) = struct.unpack("<Q", start[:_PREFIX_BYTES])
    if start[_PREFIX_BYTES : _PREFIX_BYTES + 1] not in (b"{", b""):
        raise _damaged(
            path,
            "is not a safetensors file",
            f"no header begins at byte 8; the file has {size:,} bytes, the first {start[:16]!r}",
        )
    if length > MAX_HEADER_BYTES:
        raise _damaged(
            path,
            "declares an absurd header",
            f"its header has {length:,} bytes, the limit is {MAX_HEADER_BYTES:,}",
        )
    if length + _PREFIX_BYTES > size:
        raise _damaged(
            path,
            "is cut off inside its header",
            f"the header ends at byte {length + _PREFIX_BYTES:,}, the file has {size:,} bytes",
        )
    return int(length)


def _parse(path: Path, raw: bytes) -> dict[str, Any]:
    try:
        described = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise _damaged(path, "has a header that is no JSON", str(error)) from error
    if not isinstance(described, dict):
        raise _damaged(
            path,
            "has a header that is no JSON object",
            f"it is a {type(described).__name__} of {len(raw):,} bytes",
        )
    described.pop("__metadata__", None)
    return described


def _entries(path: Path, described: dict[str, Any], base: int) -> list[TensorEntry]:
    """Return one checked entry for each tensor; ``base`` is where the data begins."""
    entries = []
    known: dict[tuple[str, tuple[int, ...]], int] = {}  # few shapes, many tensors
    for name, tensor in described.items():
        try:
            dtype, shape = tensor["dtype"], tuple(tensor["shape"])
            start, end = tensor["data_offsets"]
            needed = known.get((dtype, shape))
            if needed is None:
                needed = known[dtype, shape] = _num_bytes(dtype, shape)
            fits = type(start) is type(end) is int and 0 <= start == end - needed
            entry = TensorEntry(name, _NAMES[dtype], shape, path, base + start, base + end)
        except (TypeError, KeyError, ValueError):
            raise _bad_entry(path, name, tensor) from None
        if not fits:
            raise _bad_entry(path, name, tensor)
        entries.append(entry)
    return entries


def _num_bytes(dtype: str, shape: tuple[int, ...]) -> int:
    needed, odd = divmod(_BITS[dtype] * prod(shape), 8)
    if odd or not all(type(size) is int and size >= 0 for size in shape):
        raise ValueError
    return needed


def _bad_entry(path: Path, name: str, tensor: object) -> CheckpointError:
    if not isinstance(tensor, dict) or not {"dtype", "shape", "data_offsets"} <= tensor.keys():
        return _damaged(
            path,
            f"does not describe tensor {name}",
            f"dtype, shape and data_offsets expected, {str(tensor)[:120]} found",
        )
    dtype, shape, offsets = tensor["dtype"], tensor["shape"], tensor["data_offsets"]
    if not isinstance(dtype, str) or dtype not in BY_HEADER:
        known = ", ".join(sorted(BY_HEADER))
        return _damaged(
            path, f"has tensor {name} in an unknown dtype", f"{dtype!r}; known: {known}"
        )
    sizes = f"shape {str(shape)[:80]}, data_offsets {str(offsets)[:80]}"
    if isinstance(shape, list) and all(type(size) is int and size >= 0 for size in shape):
        needed, odd = divmod(_BITS[dtype] * prod(shape), 8)
        sizes = f"{dtype} {shape} needs {needed}{'.5' if odd else ''} bytes; it has {offsets}"
    return _damaged(path, f"has a wrong size for tensor {name}", sizes)


def _check_layout(path: Path, entries: list[TensorEntry], base: int, size: int) -> None:
    """Raise unless ``entries``, sorted, fill the bytes from ``base`` to ``size`` exactly."""
    end = base
    for entry in entries:
        if entry.start != end:
            word = "overlaps what stands before it" if entry.start < end else "follows a gap"
            raise _damaged(
                path,
                f"has a damaged header: tensor {entry.name} {word}",
                f"it starts at byte {entry.start:,}, the one before ends at byte {end:,}",
            )
        end = entry.end
    if end != size:
        word = "is cut short" if end > size else "has bytes that its header does not name"
        raise _damaged(path, word, f"{end:,} bytes expected, the file has {size:,}")


def _damaged(path: Path, what: str, why: str) -> CheckpointError:
    return CheckpointError(f"{path} {what}.", why=[why], todo=_FETCH_AGAIN, path=path)
