"""Calls of layers that are made again: the first of a kind is recorded, the next replay it.

A product takes the GPU few microseconds, which the host has to keep up with. A replay looks up
what was launched, allocates the result and launches. Very many rows keep the GPU busy anyway.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Sequence
from functools import partial

import torch
from torch import Tensor

from quantdock.errors import FormatError
from quantdock_cuda.device import counters
from quantdock_triton.launcher import ALIGNMENT
from quantdock_triton.raw_launch import is_watched
from quantdock_triton.recording import Recorder
from quantdock_triton.tape import Tape

MOST_ROWS = 8192  # of x in a call that is kept
MOST_KINDS = 256  # of calls that are kept
MOST_SCRATCH = 256 << 20  # bytes
# Of them, those that stay for the calls after: two tiles of 256 x 128 a program take 33 MiB.
MOST_STAYING = 40 << 20
ATTEMPTS = 3  # to record a call: the first may prepare what the next finds
_Allocate = Callable[[], Tensor]
_DEFAULT_STREAM = 0  # is never captured into a graph
_LOW_BITS = ALIGNMENT - 1


class _Workspaces(threading.local):
    """Memory for each GPU's default stream that launches write and read in between.

    Launches of one stream follow each other. Those of threads may come in between.
    """

    def __init__(self) -> None:
        self.known: set[int] = set()  # GPUs that this thread has used
        self._of: dict[int, tuple[int, int, Tensor]] = {}  # bytes, address and memory

    def use(self, device: int) -> None:
        """Let this thread use a GPU: the driver's functions want a context, which torch's make."""
        torch.zeros(1, device=f"cuda:{device}")
        self.known.add(device)

    def memory(self, device: int, num_bytes: int) -> tuple[int, Tensor]:
        """Return so many bytes or more, and their address."""
        size, address, memory = self._of.get(device, (-1, 0, None))
        if memory is None or size < num_bytes:
            memory = torch.empty(num_bytes, dtype=torch.uint8, device=f"cuda:{device}")
            address = memory.data_ptr()
            self._of[device] = num_bytes, address, memory
        return address, memory


_WORKSPACES = _Workspaces()


class Replays:
    """The calls of layers of one kind on GPU ``device``.

    Args:
        run: ``(x, *others)`` to the result [..., N]; all tensors are on that GPU.
    """

    def __init__(self, run: Callable[..., Tensor], device: int) -> None:
        self._run, self._device = run, device
        # Launches, and what allocates the result, and the memory in between on other streams.
        self._kept: dict[Hashable, tuple[Tape, _Allocate, _Allocate]] = {}
        self._refused: dict[Hashable, int] = {}

    def __call__(self, kind: Hashable, x: Tensor, *others: Tensor | None) -> Tensor | None:
        """Return the result for ``x`` [..., K]; None where the call is not of those kept.

        Args:
            kind: differs wherever the shapes, dtypes or strides of the tensors do, but for x, of
                which rows that do not follow each other are refused.
        Raises:
            FormatError: one of the others is not on the GPU, which kernels would read as if it was.
        """
        device = self._device
        if not x.is_contiguous() or torch._C._cuda_getDevice() != device or is_watched():
            _require_here(others, device)
            return None
        if device not in _WORKSPACES.known:
            _WORKSPACES.use(device)
        kept = self._kept.get(kind)
        if kept is None:
            return self._recorded(kind, x, others)
        stream = torch._C._cuda_getCurrentRawStream(device)
        counts = counters.address(device, stream)
        bits = x.data_ptr()
        names = [bits]
        for tensor in others:
            if tensor is None:
                names.append(0)
            elif tensor.get_device() == device:
                address = tensor.data_ptr()
                names.append(address)
                bits |= address
            else:
                _require_here(others, device)
        if bits & _LOW_BITS or not counts:
            return None
        tape, empty, memory = kept
        result = empty()
        names += (counts, result.data_ptr())
        if stream == _DEFAULT_STREAM and tape.scratch_bytes <= MOST_STAYING:
            address, between = _WORKSPACES.memory(device, tape.scratch_bytes)
        else:
            between = memory()  # is not anybody's until all is launched
            address = between.data_ptr()
        if tape.has_products:
            tape(stream, names, address, (x, *others, None, result), between)
        else:
            tape(stream, names, address)
        return result

    def _recorded(
        self, kind: Hashable, x: Tensor, others: Sequence[Tensor | None]
    ) -> Tensor | None:
        """Return the result, and keep how it came about where that may be done again."""
        _require_here(others, self._device)
        named = (x, *others, counters(self._device))
        fits = 0 < x.numel() <= MOST_ROWS * x.shape[-1]
        if not fits or named[-1] is None or self._refused.get(kind, 0) >= ATTEMPTS:
            return None
        given = [t for t in named if t is not None]
        are_apart = len({t.data_ptr() for t in given}) == len(given)  # each place has one name
        if not (are_apart and all(map(_is_plain, given))):
            return None
        with Recorder(named) as recorder:
            result = self._run(x, *others)
        tape = recorder.tape(result)
        if tape is None or tape.scratch_bytes > MOST_SCRATCH or not result.is_contiguous():
            if len(self._refused) >= MOST_KINDS:
                self._refused.clear()
            self._refused[kind] = self._refused.get(kind, 0) + 1
        else:
            if len(self._kept) >= MOST_KINDS:
                self._kept.pop(next(iter(self._kept), None), None)  # unless another thread did
            number = named[-1]
            empty = _allocation(number, result.dtype, result.shape)
            memory = _allocation(number, torch.uint8, (tape.scratch_bytes,))
            self._kept[kind] = tape, empty, memory
        return result


def _require_here(others: Sequence[Tensor | None], device: int) -> None:
    """Raise FormatError where one of a layer's tensors is not on GPU ``device``, as x is."""
    elsewhere = {str(t.device) for t in others if t is not None and t.get_device() != device}
    if elsewhere:
        raise FormatError(
            f"A layer with tensors on {', '.join(sorted(elsewhere))} was given x on cuda:{device}.",
            why=["a kernel reads the memory of one GPU"],
            todo="Move x to the layer's device, or the whole model to that of x: model.to(...).",
        )


def _is_plain(tensor: Tensor) -> bool:
    return tensor.is_contiguous() and tensor.data_ptr() % ALIGNMENT == 0


def _allocation(memory: Tensor, dtype: torch.dtype, shape: Sequence[int]) -> _Allocate:
    """Return what allocates a contiguous tensor in the fewest microseconds: from one like it.

    That one lies in ``memory``, so that no call's own, a graph's perhaps, is kept for it.
    """
    return partial(torch.empty_like, memory.view(dtype)[:1].expand(shape))
