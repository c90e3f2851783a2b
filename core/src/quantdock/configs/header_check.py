"""Headers of a layer against its layout and spec, and the settings that they would fit."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from quantdock.formats import ELEMENTS, QuantSpec
from quantdock.methods.header_faults import HeaderFault, shape_fault, slot_faults
from quantdock.methods.slot import Slot
from quantdock.schemes import StoredTensor
from quantdock.schemes.decision import CORRECT

Stored = Mapping[str, StoredTensor]
_GROUP_SIZES = (16, 32, 64, 128, 256, 512, 1024, None)


class Layout(Protocol):
    """How a dialect lays out the tensors of one weight; ``codes`` is the one that holds codes."""

    @property
    def codes(self) -> str:
        """The tensor that holds codes."""

    def shape(self, spec: QuantSpec, stored: Stored) -> tuple[int, ...]:
        """Return (N, K) as the headers show it if ``spec`` is true; empty: not at all."""

    def slots(self, spec: QuantSpec, n: int, k: int, names: Stored) -> tuple[Slot, ...]:
        """Return the tensors of a weight [n, k]; ``names`` are those that are stored."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Misfit:
    """What is wrong with the tensors of one module.

    Attributes:
        stated: what they contradict, such as "bits = 8, group_size = 32 says".
        fitting: settings that all of them fit.
    """

    faults: tuple[HeaderFault, ...]
    stated: str
    fitting: tuple[str, ...] = ()

    def told(self, name: str) -> str:
        """Return what is wrong under the module ``name``, in numbers, and what would fit."""
        wrong = "; ".join(f"{name}.{fault}" for fault in self.faults)
        hint = f" (they fit {' or '.join(self.fitting)})" if self.fitting else ""
        return f"{wrong}, as {self.stated}{hint}"


def remedy(misfits: Iterable[Misfit]) -> str:
    """Return what to do about the modules of one layer: the setting that fits all, where one is."""
    return advice([misfit.fitting for misfit in misfits])


def advice(fitting: Sequence[Sequence[str]]) -> str:
    """Return the same, of the settings that each of several modules fits.

    >>> advice([["bits = 4"], ["bits = 4", "bits = 8"]])[:46]
    'Let the quantization block say bits = 4: the t'
    """
    shared = [words for words in fitting[0] if all(words in others for others in fitting)]
    if not shared:
        return CORRECT
    return (
        f"Let the quantization block say {' or '.join(shared)}: the tensors fit that. Where other "
        "layers do not, download the file again."
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class HeaderCheck:
    """Compares headers with what a layout and a spec need.

    Attributes:
        bits: those that a layout can have. words: a spec, as the dialect states it.
        others: layouts that the dialect could have stated instead, by that statement.
        is_strict: tensors that are missing are faults too; else loading names them.
    """

    layout: Layout
    bits: Sequence[int]
    words: Callable[[QuantSpec], str]
    others: Mapping[str, Layout] = field(default_factory=dict)
    is_strict: bool = False

    def misfit(self, spec: QuantSpec, stored: Stored) -> Misfit | None:
        """Return what does not fit, and what would; None where all that is stored does."""
        faults = tuple(self._faults(self.layout, spec, stored))
        if not faults:
            return None
        for candidates in (self._nearest(spec), self._others(spec)):
            fitting = [
                words
                for words, layout, other in candidates
                if not any(self._faults(layout, other, stored))
            ]
            if fitting:
                break
        return Misfit(
            faults=faults, stated=f"{self.words(spec)} says", fitting=tuple(dict.fromkeys(fitting))
        )

    def _faults(self, layout: Layout, spec: QuantSpec, stored: Stored) -> Iterator[HeaderFault]:
        shape = layout.shape(spec, stored)
        codes = stored[layout.codes]
        if len(shape) != 2:
            yield shape_fault(layout.codes, codes, "a matrix")
            return
        n, k = shape
        if spec.cols is not None and spec.rows == 1 and k % spec.cols:
            yield HeaderFault(
                kind="shape",
                tensor=layout.codes,
                found=f"of K = {k}",
                expected=f"a multiple of {spec.cols} (the group size)",
            )
            return
        for slot in layout.slots(spec, n, k, stored):
            faults = slot_faults(slot, stored)
            yield from (fault for fault in faults if self.is_strict or fault.kind != "missing")

    def _nearest(self, spec: QuantSpec) -> Iterator[tuple[str, Layout, QuantSpec]]:
        """Yield every setting that differs from the stated one in one thing."""
        one = [_with_bits(spec, bits) for bits in self.bits]
        if spec.rows == 1:
            sizes = [size for size in _GROUP_SIZES if size or not spec.act_order]
            one += [_with_groups(spec, size) for size in sizes]
        if self.is_strict:
            one += [_with_zeros(spec, zero) for zero in (True, False)]
            one.append(replace(spec, act_order=False))
        for other in one:
            if other != spec:
                yield self.words(other), self.layout, other
        for stated, layout in self.others.items():
            yield f"{stated}, {self.words(spec)}", layout, spec

    def _others(self, spec: QuantSpec) -> Iterator[tuple[str, Layout, QuantSpec]]:
        """Yield the settings that differ in more than one thing."""
        layouts = {"": self.layout} | {
            f"{stated}, ": other for stated, other in self.others.items()
        }
        for stated, layout in layouts.items():
            for bits in self.bits:
                for size in _GROUP_SIZES if spec.rows == 1 else ():
                    other = _with_groups(_with_bits(spec, bits), size)
                    yield f"{stated}{self.words(other)}", layout, other


def _with_bits(spec: QuantSpec, bits: int) -> QuantSpec:
    prefix = "uint" if spec.element.startswith("uint") else "int"
    return replace(spec, element=f"{prefix}{bits}")


def _with_groups(spec: QuantSpec, size: int | None) -> QuantSpec:
    return replace(spec, cols=size, act_order=spec.act_order and size is not None)


def _with_zeros(spec: QuantSpec, zero: bool) -> QuantSpec:
    bits = ELEMENTS[spec.element].bits
    return replace(spec, element=f"{'uint' if zero else 'int'}{bits}", zero=zero)


def group_words(spec: QuantSpec) -> str:
    """Return ``spec`` as GPTQ and AWQ files state it."""
    size = -1 if spec.cols is None else spec.cols
    return f"bits = {ELEMENTS[spec.element].bits}, group_size = {size}"
