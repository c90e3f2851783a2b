"""What the kernels must know of the GPU that they run on, asked once."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache, partial
from threading import Lock

import torch
from torch import Tensor
from triton.runtime import driver

from quantdock_cuda.archs import platform_of
from quantdock_triton.matmul import NUM_COUNTERS
from quantdock_triton.quantize_whole import NUM_SLOTS

_NUM_STREAMS = 72  # that have counters: the default one, 32 of each priority, and some of others


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One GPU: its architecture, what it can do, and its sizes."""

    arch: str
    name: str = ""  # as its maker calls it
    features: frozenset[str]
    num_sms: int
    shared_bytes: int  # that one program may take


@lru_cache(maxsize=64)
def device_of(index: int) -> Device:
    """Return the facts of GPU ``index``."""
    properties = torch.cuda.get_device_properties(index)
    platform = platform_of((properties.major, properties.minor))
    return Device(
        arch=platform.arch,
        name=properties.name,
        features=platform.features,
        num_sms=properties.multi_processor_count,
        shared_bytes=driver.active.utils.get_device_properties(index)["max_shared_mem"],
    )


class Counters:
    """Zeros that the programs of a divided sum count in, and leave as zeros; some each stream.

    They are allotted once for a GPU. A stream that is being captured into a graph while there are
    none gets none, for memory cannot be set to zero then, nor does one that comes when all have
    been given away. Graphs that were captured on one stream share them, so they must not run at
    once. Slots lie behind them.
    """

    def __init__(self) -> None:
        self._all: dict[int, Tensor] = {}
        self._of_stream: dict[tuple[int, int], Tensor] = {}
        self._addresses: dict[tuple[int, int], int] = {}
        self._lock = Lock()  # threads with streams of their own may want their first at once

    def __call__(self, device: int) -> Tensor | None:
        """Return int32 [NUM_COUNTERS + NUM_SLOTS] of the current stream of GPU ``device`` alone.

        None: it has none, and sums are not divided.
        """
        stream = torch._C._cuda_getCurrentRawStream(device)
        found = self._of_stream.get((device, stream))
        if found is not None:
            return found
        with self._lock:
            found = self._of_stream.get((device, stream))
            return self._taken(device, stream) if found is None else found

    def _taken(self, device: int, stream: int) -> Tensor | None:
        """Return the next that no stream has yet; None where there are no more."""
        if device not in self._all:
            if torch.cuda.is_current_stream_capturing():
                return None
            self._all[device] = _allot(device)
        taken = sum(1 for known, _ in self._of_stream if known == device)
        if taken == _NUM_STREAMS:
            return None
        found = self._of_stream[device, stream] = self._all[device][taken]
        self._addresses[device, stream] = found.data_ptr()
        return found

    def slots(self, device: int) -> Tensor | None:
        """Return int32 [NUM_SLOTS] by which programs of a launch tell each other what they found.

        None where a stream has none.
        """
        found = self(device)
        return None if found is None else found[NUM_COUNTERS:]

    def address(self, device: int, stream: int) -> int:
        """Return where those of a stream are; 0: it has had none."""
        return self._addresses.get((device, stream), 0)


def _allot(device: int) -> Tensor:
    """Return the zeros of all streams of GPU ``device``.

    A thread of its own asks for them. What the calling one asks for may belong to a graph, which
    takes its memory back: torch.compile has a graph's first call run so before it is captured.
    """
    shape = (_NUM_STREAMS, NUM_COUNTERS + NUM_SLOTS)
    ask = partial(torch.zeros, shape, dtype=torch.int32, device=f"cuda:{device}")
    with ThreadPoolExecutor(max_workers=1) as other:
        zeros: Tensor = other.submit(ask).result()
    torch.cuda.synchronize(device)  # other streams may use them at once
    return zeros


counters = Counters()
