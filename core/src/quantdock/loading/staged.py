"""Bytes of files on their way to an accelerator, through page-locked memory.

A few buffers take turns: threads fill some while others are sent. Ordinary memory would cost a
fault for each page that bytes are read into, and one more copy by the driver.
"""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path

import torch
from torch import Tensor

_NUM_READERS = 4
_NUM_BUFFERS, _BUFFER_BYTES = 2 * _NUM_READERS, 8 << 20


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
        self._readers = ThreadPoolExecutor(
            _NUM_READERS, initializer=_make_current, initargs=(device,)
        )

    def read(self, file: Path, offset: int, size: int) -> tuple[Tensor, int]:
        """Return uint8 [size] on the device, and how many bytes of it the file had."""
        target = torch.empty(size, dtype=torch.uint8, device=self._device)
        if size <= _BUFFER_BYTES:  # a thread would take longer to begin than to read
            turn = self._next()
            return target, self._send(turn, target, self._fill(turn, file, offset, size))
        coming: deque[tuple[int, Tensor, Future[int]]] = deque()
        try:
            return target, self._read_pieces(target, file, offset, coming)
        finally:  # where one failed, no other may go on filling buffers of the next call
            wait([count for _, _, count in coming if not count.cancel()])

    def _read_pieces(
        self,
        target: Tensor,
        file: Path,
        offset: int,
        coming: deque[tuple[int, Tensor, Future[int]]],
    ) -> int:
        done = 0
        for start in range(0, target.numel(), _BUFFER_BYTES):
            if len(coming) == _NUM_BUFFERS:
                done += self._send_first(coming)
            turn, part = self._next(), target[start : start + _BUFFER_BYTES]
            count = self._readers.submit(self._fill, turn, file, offset + start, part.numel())
            coming.append((turn, part, count))
        while coming:
            done += self._send_first(coming)
        return done

    def _next(self) -> int:
        turn, self._turn = self._turn, (self._turn + 1) % _NUM_BUFFERS
        return turn

    def _send_first(self, coming: deque[tuple[int, Tensor, Future[int]]]) -> int:
        turn, target, count = coming.popleft()
        return self._send(turn, target, count.result())

    def _fill(self, turn: int, file: Path, offset: int, size: int) -> int:
        """Read into a buffer once it is sent, and return how many bytes there were."""
        sent = self._sent[turn]
        if sent is not None:
            sent.synchronize()
        space = self._buffers[turn][:size].numpy().data
        done = 0
        with file.open("rb", buffering=0) as source:
            source.seek(offset)
            while done < size and (count := source.readinto(space[done:])):
                done += count
        return done

    def _send(self, turn: int, target: Tensor, size: int) -> int:
        """Send the first ``size`` bytes of a buffer to ``target``, and return ``size``."""
        target[:size].copy_(self._buffers[turn][:size], non_blocking=True)
        self._sent[turn] = _mark(self._device)
        return size


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
    return torch.empty(size, dtype=torch.uint8, device="cpu", pin_memory=True)


def _make_current(device: torch.device) -> None:
    """Let a thread ask for ``device``; without one it would open the first."""
    if device.index is not None:
        torch.accelerator.set_device_index(device.index)


def _mark(device: torch.device) -> torch.Event:
    """Return an event after everything that ``device`` was asked for."""
    event = torch.Event(device)
    event.record(torch.accelerator.current_stream(device))
    return event
