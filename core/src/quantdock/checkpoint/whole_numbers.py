"""The values of small tensors of whole numbers, such as one that states the shape of another."""

from __future__ import annotations

import struct

from quantdock.checkpoint.header import TensorEntry
from quantdock.errors import CheckpointError

_CODES = {"int64": "q", "int32": "i"}
_MOST = 64


def read_whole_numbers(entry: TensorEntry) -> tuple[int, ...]:
    """Return the values of ``entry``; () where it is large, or holds no whole numbers.

    Raises:
        CheckpointError: the file is gone, or was cut short.
    """
    code = _CODES.get(entry.dtype)
    if code is None or entry.num_bytes > _MOST:
        return ()
    try:
        with entry.file.open("rb") as file:
            file.seek(entry.start)
            raw = file.read(entry.num_bytes)
        return struct.unpack(f"<{entry.num_bytes // struct.calcsize('<' + code)}{code}", raw)
    except (OSError, struct.error) as error:
        raise CheckpointError(
            f"{entry.name} cannot be read from {entry.file}.",
            why=[str(error)],
            todo="Check that the file is whole and readable.",
            path=entry.file,
        ) from error
