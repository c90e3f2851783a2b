"""Recording a call of a layer: what it allocates and launches, and that it does nothing else.

Calls of one shape launch the same kernels in the same grids with the same numbers; what differs is
where the tensors are. Anything that a call does besides launching, allocating, looking at tensors
in other shapes and some products of torch's makes its record useless, so no record does less than
the call. What launches past torch and ``Launcher`` has to say so (``spoil``).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from quantdock_triton.raw_launch import expanded
from quantdock_triton.tape import SCRATCH, Map, Place, Product, Tape, View

_ALIGNMENT = 512  # bytes, as torch aligns what it allocates
_ALLOCATIONS = frozenset({"aten::empty.memory_format", "aten::empty_strided"})
_VIEWS = frozenset(
    {"view", "view.dtype", "slice.Tensor", "t", "transpose.int", "as_strided", "select.int",
     "unsqueeze", "squeeze.dim", "detach"}
)  # fmt: skip
# Operators that make a tensor, and what writes the same to one that is there.
_PRODUCTS: dict[str, Callable[..., object]] = {"aten::_scaled_mm": torch._scaled_mm}
_CURRENT = threading.local()


@dataclass(frozen=True, slots=True)
class _Block:
    """Memory, and what its start is called."""

    start: int
    num_bytes: int
    first: Place

    def holds(self, tensor: Tensor) -> bool:
        return self.start <= tensor.data_ptr() < self.start + self.num_bytes

    def place(self, tensor: Tensor) -> Place:
        return Place(self.first.name, self.first.offset + tensor.data_ptr() - self.start)


@dataclass(frozen=True, slots=True)
class _Launch:
    compiled: Any
    grid: Sequence[int]
    arguments: Sequence[Any]


@dataclass(frozen=True, slots=True)
class _Call:
    call: Callable[..., object]
    arguments: Sequence[Any]
    options: dict[str, Any]


class Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records what a call does while it is entered.

    Args:
        named: the tensors that each call brings.
    """

    def __init__(self, named: Sequence[Tensor | None]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._named = named
        self._allocated: list[Tensor] = []
        self._steps: list[_Launch | _Call] = []
        self._is_whole = True

    def __enter__(self) -> Recorder:
        _CURRENT.recorder = self
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *failure: Any) -> None:
        _CURRENT.recorder = None
        super().__exit__(*failure)  # type: ignore[no-untyped-call]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name = func.name()
        if not self._is_whole:
            return result
        if name in _ALLOCATIONS:
            self._allocated.append(result)
        elif name in _PRODUCTS:
            self._allocated.append(result)
            self._steps.append(_Call(_PRODUCTS[name], args, {**(kwargs or {}), "out": result}))
        elif name.removeprefix("aten::") not in _VIEWS:
            self.spoil()
        return result

    def spoil(self) -> None:
        """Give the record up, and with it the memory that it holds."""
        self._is_whole = False
        self._allocated.clear()
        self._steps.clear()

    def launched(self, compiled: Any, grid: Sequence[int], arguments: Sequence[Any]) -> None:
        """Note a launch; ``compiled`` None: of what cannot be launched again."""
        if compiled is None:
            self.spoil()
        elif self._is_whole:
            self._steps.append(_Launch(compiled, grid, arguments))

    def tape(self, result: Tensor) -> Tape | None:
        """Return the launches; None if they are not all that the call did.

        Args:
            result: of the call, a whole allocation; its name follows those of the named tensors.
        """
        is_all = result.untyped_storage().nbytes() == result.nbytes
        if not self._is_whole or not self._steps or not is_all:
            return None
        blocks, scratch_bytes = self._blocks(result)
        tape = Tape(len(self._named) + 1, scratch_bytes)
        tensors = (*self._named, result)
        for step in self._steps:
            if isinstance(step, _Call):
                product = _placed_product(step, blocks, tensors)
                if product is None:
                    return None
                tape.add_product(product)
                continue
            kept = _placed(step.arguments, blocks, step.compiled)
            if kept is None or not tape.add(step.compiled, step.grid, kept):
                return None
        return tape

    def _blocks(self, result: Tensor) -> tuple[list[_Block], int]:
        """Return all memory that the call may use, and how much of it is scratch memory."""
        blocks = [
            _Block(t.data_ptr(), t.nbytes, Place(name, 0))
            for name, t in enumerate(self._named)
            if t is not None
        ]
        end = 0
        for tensor in self._allocated:
            start, size = tensor.data_ptr(), tensor.untyped_storage().nbytes()
            if start == result.data_ptr():
                blocks.append(_Block(start, size, Place(len(self._named), 0)))
            else:
                blocks.append(_Block(start, size, Place(SCRATCH, end)))
                end += -(-size // _ALIGNMENT) * _ALIGNMENT
        return blocks, end


def launched(compiled: Any, grid: Sequence[int], arguments: Sequence[Any]) -> None:
    """Tell a recorder of this thread, if there is one, of a launch."""
    recorder = getattr(_CURRENT, "recorder", None)
    if recorder is not None:
        recorder.launched(compiled, grid, arguments)


def spoil() -> None:
    """Tell a recorder of this thread of something that nobody can make again from a record."""
    launched(None, (), ())


def _placed(arguments: Sequence[Any], blocks: Sequence[_Block], compiled: Any) -> list[Any] | None:
    """Return the arguments of a launch with places for tensors; None if one is elsewhere."""
    kept: list[Any] = []
    num_descriptors = 0
    for argument in arguments:
        is_descriptor = hasattr(argument, "block_shape")
        if not is_descriptor and not isinstance(argument, Tensor):
            kept.append(argument)
            continue
        tensor = argument.base if is_descriptor else argument
        place = next((b.place(tensor) for b in blocks if b.holds(tensor)), None)
        if place is None:
            return None
        if is_descriptor:
            bare = copy(argument)
            bare.base = None  # a record keeps no tensor of the call
            kept.append(Map(place.name, place.offset, bare, compiled, num_descriptors))
            kept += expanded(argument, compiled, num_descriptors)[1:]
            num_descriptors += 1
        else:
            kept.append(place)
    return kept


def _placed_product(
    step: _Call, blocks: Sequence[_Block], tensors: Sequence[Tensor | None]
) -> Product | None:
    """Return a product with views for tensors; None if one of them is elsewhere."""
    kept: list[Any] = []
    for value in (*step.arguments, *step.options.values()):
        kept.append(_view(value, blocks, tensors) if isinstance(value, Tensor) else value)
        if isinstance(value, Tensor) and kept[-1] is None:
            return None
    count = len(step.arguments)
    options = dict(zip(step.options, kept[count:], strict=True))
    return Product(step.call, tuple(kept[:count]), options)


def _view(
    tensor: Tensor, blocks: Sequence[_Block], tensors: Sequence[Tensor | None]
) -> View | None:
    """Return ``tensor`` as a view of what it is a part of; None if that is of another dtype."""
    place = next((b.place(tensor) for b in blocks if b.holds(tensor)), None)
    if place is None:
        return None
    whole = None if place.name == SCRATCH else tensors[place.name]
    if whole is not None and whole.dtype != tensor.dtype:
        return None
    shape, stride = tuple(tensor.shape), tensor.stride()
    is_whole = whole is not None and (whole.shape, whole.stride()) == (shape, stride)
    return View(place.name, place.offset, shape, stride, tensor.dtype, is_whole)
