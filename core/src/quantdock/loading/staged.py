"""Bytes of files on their way to an accelerator, through page-locked memory.

A few buffers take turns: while one is sent, the next is filled. Ordinary memory would cost a fault
for each page that bytes are read into, and one more copy by the driver.
"""

from __future__ import annotations

from io import FileIO
from pathlib import Path

import torch
from torch import Tensor

_NUM_BUFFERS, _BUFFER_BYTES = 4, 8 << 20


class Stage:
    """The buffers of one device.

    Raises:
        RuntimeError: memory cannot be page-locked here.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._buffers = [_locked(_BUFFER_BYTES) for _ in range(_NUM_BUFFERS)]
        self._sent: list[torch.Event | None] = [None] * _NUM_BUFFERS
        self._turn = 0

    def read(self, file: Path, offset: int, size: int) -> tuple[Tensor, int]:
        """Return uint8 [size] on the device, and how many bytes of it the file had."""
        target = torch.empty(size, dtype=torch.uint8, device=self._device)
        done = 0
        with file.open("rb", buffering=0) as source:
            source.seek(offset)
            while done < size:
                count = self._send(source, target[done : done + _BUFFER_BYTES])
                done += count
                if count == 0:
                    break
        return target, done

    def _send(self, source: FileIO, target: Tensor) -> int:
        """Fill the next buffer, send it to ``target``, and return how many bytes there were."""
        turn, self._turn = self._turn, (self._turn + 1) % _NUM_BUFFERS
        sent, buffer = self._sent[turn], self._buffers[turn]
        if sent is not None:
            sent.synchronize()
        count = source.readinto(buffer[: target.numel()].numpy().data)
        target[:count].copy_(buffer[:count], non_blocking=True)
        self._sent[turn] = _mark(self._device)
        return count


def stage_for(device: torch.device) -> Stage | None:
    """Return a stage for ``device``; None where bytes go there better without one."""
    accelerator = torch.accelerator.current_accelerator()  # asks no driver
    if accelerator is None or accelerator.type != device.type:
        return None
    try:
        return Stage(device)
    except RuntimeError:  # the system locks no more memory
        return None


def _locked(size: int) -> Tensor:
    return torch.empty(size, dtype=torch.uint8, pin_memory=True)


def _mark(device: torch.device) -> torch.Event:
    """Return an event after everything that ``device`` was asked for."""
    event = torch.Event(device)
    event.record(torch.accelerator.current_stream(device))
    return event
