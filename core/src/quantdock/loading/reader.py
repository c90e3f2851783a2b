"""Reading one tensor from its file into memory of its own."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from quantdock.checkpoint.header import TensorEntry
from quantdock.errors import CheckpointError
from quantdock.loading.staged import Stage
from quantdock.numerics.dtypes import torch_dtype


def read_tensor(
    entry: TensorEntry,
    device: torch.device | str = "cpu",
    region: Sequence[slice] = (),
    stage: Stage | None = None,
) -> Tensor:
    """Return the tensor that ``entry`` points at, on ``device``.

    The bytes are read, not mapped: a file that is cut short later cannot take the process down,
    and memory that was read is memory that is counted.

    Args:
        region: a slice of each dimension, with start and stop; only the rows of the first are
            read. Empty: all of it.
        stage: of ``device``, for bytes that are sent as they are.
    Raises:
        CheckpointError: the file is shorter than its header said when it was opened.
    """
    dtype = torch_dtype(entry.dtype)
    rows, *others = region or (slice(None),)
    first, *rest = entry.shape or (1,)
    start, stop, _ = rows.indices(first)
    if all(cut.indices(n) == (0, n, 1) for cut, n in zip(others, rest, strict=False)):
        others = []
    shape = (stop - start, *rest) if entry.shape else ()
    size = num_bytes(entry, region)
    if size == 0:
        return torch.empty(shape, dtype=dtype, device=device)[(slice(None), *others)]
    offset = entry.start + start * (entry.num_bytes // first)
    if stage is not None and not others:
        return _sent_bytes(stage, entry, offset, size).view(dtype).reshape(shape)
    tensor = _read_bytes(entry, offset, size).view(dtype).reshape(shape)
    if others:
        tensor = tensor[(slice(None), *others)].clone(memory_format=torch.contiguous_format)
    return tensor.to(device)


def num_bytes(entry: TensorEntry, region: Sequence[slice] = ()) -> int:
    """Return how many bytes reading ``region`` of a tensor takes."""
    if not region or not entry.shape[0]:
        return entry.num_bytes
    start, stop, _ = region[0].indices(entry.shape[0])
    return entry.num_bytes // entry.shape[0] * (stop - start)


def _read_bytes(entry: TensorEntry, offset: int, size: int) -> Tensor:
    buffer = bytearray(size)
    with entry.file.open("rb") as file:
        file.seek(offset)
        _require_all(entry, offset, size, file.readinto(buffer))
    return torch.frombuffer(buffer, dtype=torch.uint8)


def _sent_bytes(stage: Stage, entry: TensorEntry, offset: int, size: int) -> Tensor:
    flat, read = stage.read(entry.file, offset, size)
    _require_all(entry, offset, size, read)
    return flat


def _require_all(entry: TensorEntry, offset: int, size: int, read: int) -> None:
    if read != size:
        raise CheckpointError(
            f"{entry.file} ends inside tensor {entry.name}.",
            why=[f"wanted {size} bytes at offset {offset}, got {read}"],
            todo="The file changed after it was opened: copy or download it again.",
            path=entry.file,
        )
