"""What is wrong with the headers of a layer's packed integers, in numbers, and what would fit."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Protocol

from quantdock.formats import ELEMENTS, QuantSpec
from quantdock.methods.slot import Slot
from quantdock.schemes import StoredTensor

Stored = Mapping[str, StoredTensor]
_GROUP_SIZES = (16, 32, 64, 128, 256, 512, 1024, None)


class Layout(Protocol):
    """How a dialect lays out the tensors of one weight."""

    def shape(self, spec: QuantSpec, stored: Stored) -> tuple[int, ...]:
        """Return (N, K) as the headers show it if ``spec`` is true; empty: not at all."""

    def slots(
        self, spec: QuantSpec, n: int, k: int, names: Container[str] | None
    ) -> tuple[Slot, ...]:
        """Return the tensors of a weight [n, k]; ``names`` are those that are stored."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeaderCheck:
    """Compares headers with what a layout and a spec need; ``bits`` are those a layout can have."""

    layout: Layout
    bits: Sequence[int]

    def error(self, name: str, spec: QuantSpec, stored: Stored) -> str:
        """Return what does not fit under the module ``name``; empty: nothing that is stored."""
        wrong = [f"{name}.{text}" for text in self._misfits(spec, stored)]
        if not wrong:
            return ""
        fitting = [_words(other) for other in self._others(spec, stored)]
        hint = f" (they fit {' or '.join(fitting)})" if fitting else ""
        return "; ".join(wrong) + f", as {_words(spec)} says{hint}"

    def _misfits(self, spec: QuantSpec, stored: Stored) -> Iterator[str]:
        shape = self.layout.shape(spec, stored)
        if not shape:
            yield f"qweight has shape {list(stored['qweight'].shape)}, no matrix"
            return
        n, k = shape
        if spec.cols is not None and k % spec.cols:
            yield f"qweight has K = {k}, which groups of {spec.cols} do not divide"
            return
        for slot in self.layout.slots(spec, n, k, stored):
            spelling = slot.stored_as(stored)
            if spelling is None:
                continue
            tensor = stored[spelling]
            if tensor.dtype not in slot.dtypes:
                yield f"{spelling} is {tensor.dtype}, not {' or '.join(slot.dtypes)}"
            elif prod(tensor.shape) not in {prod(shape) for shape in slot.shapes}:
                yield f"{spelling} is {list(tensor.shape)}, not {list(slot.shape)}"

    def _others(self, spec: QuantSpec, stored: Stored) -> Iterator[QuantSpec]:
        """Yield the specs of other bits and group sizes that all stored tensors fit."""
        prefix = "uint" if spec.element.startswith("uint") else "int"
        for bits in self.bits:
            for size in _GROUP_SIZES:
                order = spec.act_order and size is not None
                other = replace(spec, element=f"{prefix}{bits}", cols=size, act_order=order)
                if not any(self._misfits(other, stored)):
                    yield other


def _words(spec: QuantSpec) -> str:
    size = -1 if spec.cols is None else spec.cols
    return f"bits = {ELEMENTS[spec.element].bits}, group_size = {size}"
