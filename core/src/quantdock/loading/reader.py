"""Reading one tensor from its file into memory of its own."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from quantdock.checkpoint.header import TensorEntry
from quantdock.errors import CheckpointError
from quantdock.numerics.dtypes import torch_dtype


def read_tensor(
    entry: TensorEntry, device: torch.device | str = "cpu", region: Sequence[slice] = ()
) -> Tensor:
    """Return the tensor that ``entry`` points at, on ``device``.

    The bytes are read, not mapped: a file that is cut short later cannot take the process down,
    and memory that was read is memory that is counted.

    Args:
        region: a slice of each dimension, with start and stop; only the rows of the first are
            read. Empty: all of it.
    Raises:
        CheckpointError: the file is shorter than its header said when it was opened.
    """
    dtype = torch_dtype(entry.dtype)
    rows, *others = region or (slice(None),)
    first, *rest = entry.shape or (1,)
    start, stop, _ = rows.indices(first)
    shape = (stop - start, *rest) if entry.shape else ()
    size = num_bytes(entry, region)
    if size == 0:
        return torch.empty(shape, dtype=dtype, device=device)[(slice(None), *others)]
    flat = _read_bytes(entry, entry.start + start * (entry.num_bytes // first), size)
    tensor = flat.view(dtype).reshape(shape)
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
        read = file.readinto(buffer)
    if read != size:
        raise CheckpointError(
            f"{entry.file} ends inside tensor {entry.name}.",
            why=[f"wanted {size} bytes at offset {offset}, got {read}"],
            todo="The file changed after it was opened: copy or download it again.",
            path=entry.file,
        )
    return torch.frombuffer(buffer, dtype=torch.uint8)
