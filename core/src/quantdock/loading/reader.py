"""Reading one tensor from its file into memory of its own."""

from __future__ import annotations

import torch
from torch import Tensor

from quantdock.checkpoint.header import TensorEntry
from quantdock.errors import CheckpointError
from quantdock.numerics.dtypes import torch_dtype


def read_tensor(entry: TensorEntry, device: torch.device | str = "cpu") -> Tensor:
    """Return the tensor that ``entry`` points at, on ``device``.

    The bytes are read, not mapped: a file that is cut short later cannot take the process down,
    and memory that was read is memory that is counted.

    Raises:
        CheckpointError: the file is shorter than its header said when it was opened.
    """
    dtype = torch_dtype(entry.dtype)
    size = entry.end - entry.start
    if size == 0:
        return torch.empty(entry.shape, dtype=dtype, device=device)
    buffer = bytearray(size)
    with entry.file.open("rb") as file:
        file.seek(entry.start)
        read = file.readinto(buffer)
    if read != size:
        raise CheckpointError(
            f"{entry.file} ends inside tensor {entry.name}.",
            why=[f"wanted {size} bytes at offset {entry.start}, got {read}"],
            todo="The file changed after it was opened: copy or download it again.",
            path=entry.file,
        )
    flat = torch.frombuffer(buffer, dtype=torch.uint8)
    return flat.view(dtype).reshape(entry.shape).to(device)
