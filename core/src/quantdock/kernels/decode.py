"""Codes to f32 by the few passes that a plain CPU does fast: a table of ways, one an element.

Torch converts float8 one element at a time. But a float8 code is the upper part of a float16
number: sign-extend it to 16 bits, shift it, clear the bit that the sign left between sign and
exponent, and call it float16. Subnormals come out right, only the exponent's offset is another,
and that is one factor (``unit``) for all codes. Codes of at most four bits lie several a byte
(packed.py): signed ones are shifted into a byte's highest bits, which is the code times a power of
two, again one factor; floats of four and six bits go on from there as float8 does. Shifts, masks
and conversions to f32 are vector instructions everywhere. See docs/benchmarks/cpu.md for what else
was tried.

>>> import torch
>>> codes = torch.tensor([[1.5, -448.0]]).to(torch.float8_e4m3fn)
>>> decoder = Decoder("fp8_e4m3")
>>> (decoder(codes) * decoder.unit).tolist()
[[1.5, -448.0]]
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Protocol

import torch
from torch import Tensor

from quantdock.formats import ELEMENTS
from quantdock.kernels.tile_product import Tiles, on_tiles_
from quantdock.numerics import decode


class Way(Protocol):
    """How codes become numbers; an object has scratch memory for pieces of one shape."""

    def numbers(self, codes: Tensor, width: int) -> Tensor:
        """Return [..., width] in a dtype that torch converts to f32 by value, and fast."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Float16Bits:
    """How a code in a byte's highest bits is float16: ``unit * float16((byte << shift) & mask)``.

    ``nan_mask`` and ``nan_bits`` say which codes are NaN and would come out as numbers.
    """

    shift: int
    mask: int  # as int16; -1 keeps every bit
    unit: float
    nan_mask: int = 0
    nan_bits: int = -1


_BELOW_SIGN = -0x4001  # every bit but the one below the sign
# The unit is 2 to the difference of the exponent offsets, of which that of float16 is 15.
FLOAT16_BITS = {
    "fp8_e4m3": Float16Bits(shift=7, mask=_BELOW_SIGN, unit=2.0**8, nan_mask=0x7F, nan_bits=0x7F),
    "fp8_e4m3fnuz": Float16Bits(
        shift=7, mask=_BELOW_SIGN, unit=2.0**7, nan_mask=-1, nan_bits=-0x80
    ),
    "fp8_e5m2": Float16Bits(shift=8, mask=-1, unit=1.0),
    "fp4_e2m1": Float16Bits(shift=5, mask=-0x8000 + 0x0E00, unit=2.0**14),
    "fp6_e2m3": Float16Bits(shift=5, mask=-0x8000 + 0x0F80, unit=2.0**14),
    "fp6_e3m2": Float16Bits(shift=6, mask=-0x8000 + 0x1F00, unit=2.0**12),
}
_SIGNED, _UNSIGNED = (
    {
        e.name: e.memory_bits
        for e in ELEMENTS.values()
        if e.memory_bits < 8 and not e.is_float and e.storage == storage
    }
    for storage in ("int8", "uint8")
)


def unit_of(element: str) -> float:
    """Return what one unit of a ``Decoder``'s result is worth."""
    if element in _SIGNED:
        return 2.0 ** (_SIGNED[element] - 8)
    return FLOAT16_BITS[element].unit if element in FLOAT16_BITS else 1.0


def subtracts_bytes(element: str) -> bool:
    """Return whether zero points from 0 to 127 may come as int8, to be subtracted before f32."""
    return element in _UNSIGNED


def has_lost_nan(codes: Tensor, element: str) -> Tensor:
    """Return for each row of ``codes`` [N, K] whether it has a NaN that ``Decoder`` misses."""
    bits = FLOAT16_BITS.get(element)
    if bits is None or bits.nan_mask == 0:
        return torch.zeros(codes.shape[0], dtype=torch.bool, device=codes.device)
    return ((codes.view(torch.int8) & bits.nan_mask) == bits.nan_bits).any(dim=1)


class Decoder:
    """Decodes pieces of a weight one after another, those of one shape into the same memory."""

    def __init__(self, element: str) -> None:
        self.element = element
        self.unit = unit_of(element)
        self._way = _WAYS[element]()
        self._values: Tensor | None = None

    def __call__(
        self, codes: Tensor, width: int | None = None, zero: Tiles | None = None
    ) -> Tensor:
        """Return f32 [..., k] with ``codes - zero == unit * result``, valid until the next call.

        Shapes:
            codes: [..., k] in the element's storage dtype, any strides; or uint8 [n, bytes].
        Args:
            width: k, where codes lie packed.
            zero: zero points in units of the result; int8 where ``subtracts_bytes``, else f32.
        """
        shape = (*codes.shape[:-1], codes.shape[-1] if width is None else width)
        if self._values is None or self._values.shape != shape:
            self._values = codes.new_empty(shape, dtype=torch.float32)
        numbers = self._way.numbers(codes, shape[-1])
        if zero is not None and zero.values.dtype == torch.int8:
            numbers, zero = on_tiles_(Tensor.sub_, numbers.view(torch.int8), zero), None
        values = self._values.copy_(numbers)
        return values if zero is None else on_tiles_(Tensor.sub_, values, zero)


_Steps = list[tuple[Callable[..., Tensor], int]]


class _Halves:
    """Floats as float16; those of less than 8 bits are first brought to the top of a byte."""

    def __init__(self, element: str) -> None:
        self._bits = FLOAT16_BITS[element]
        kind = ELEMENTS[element]
        self._planes = None if kind.bits == 8 else _Planes(_signed_steps, kind.bits, torch.int8)
        self._halves: Tensor | None = None

    def numbers(self, codes: Tensor, width: int) -> Tensor:
        top = codes if self._planes is None else self._planes.numbers(codes, width)
        if self._halves is None or self._halves.shape != top.shape:
            self._halves = codes.new_empty(top.shape, dtype=torch.int16)
        halves = self._halves.copy_(top.view(torch.int8))
        halves.bitwise_left_shift_(_constant(self._bits.shift, torch.int16, codes.device))
        if self._bits.mask != -1:
            halves.bitwise_and_(_constant(self._bits.mask, torch.int16, codes.device))
        return halves.view(torch.float16)


class _Planes:
    """Codes that lie several a byte, as bytes; a plane takes one or two steps."""

    def __init__(self, steps: Callable[[int, int], _Steps], bits: int, dtype: torch.dtype) -> None:
        self._dtype = dtype
        self._planes = [steps(bits, plane) for plane in range(8 // bits)]
        self._bytes: Tensor | None = None

    def numbers(self, codes: Tensor, width: int) -> Tensor:
        n, size = codes.shape
        shape = (n, size * len(self._planes))
        if self._bytes is None or self._bytes.shape != shape:
            self._bytes = codes.new_empty(shape, dtype=self._dtype)
        for plane, steps in enumerate(self._planes):
            source, part = codes.view(self._dtype), self._bytes[:, plane * size :][:, :size]
            for step, operand in steps:
                step(source, _constant(operand, self._dtype, codes.device), out=part)
                source = part
        return self._bytes[:, :width]


def _signed_steps(bits: int, plane: int) -> _Steps:
    """Return what leaves a plane's codes in the highest bits of a byte, and zeros below."""
    shift = 8 - bits * (plane + 1)
    shifted: _Steps = [(torch.bitwise_left_shift, shift)] if shift else []
    return [*shifted, (torch.bitwise_and, -(1 << 8 - bits))] if plane else shifted


def _unsigned_steps(bits: int, plane: int) -> _Steps:
    """Return what leaves a plane's codes in the lowest bits of a byte, and zeros above."""
    shift = bits * plane
    shifted: _Steps = [(torch.bitwise_right_shift, shift)] if shift else []
    return shifted if shift + bits == 8 else [*shifted, (torch.bitwise_and, (1 << bits) - 1)]


class _Bytes:
    """Codes of a byte that torch converts by value; e5m2fnuz is looked up."""

    def __init__(self, element: str) -> None:
        self._element = element

    def numbers(self, codes: Tensor, width: int) -> Tensor:
        return decode(codes, self._element) if ELEMENTS[self._element].is_float else codes


_WAYS: dict[str, Callable[[], Way]] = {
    **{name: partial(_Bytes, name) for name in ELEMENTS},
    **{name: partial(_Halves, name) for name in FLOAT16_BITS},
    **{name: partial(_Planes, _signed_steps, b, torch.int8) for name, b in _SIGNED.items()},
    **{name: partial(_Planes, _unsigned_steps, b, torch.uint8) for name, b in _UNSIGNED.items()},
}


@lru_cache(maxsize=64)
def _constant(value: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return ``value`` as a tensor, which saves torch from wrapping numbers at each use."""
    with torch.inference_mode(False):  # it outlives this call and serves outside of it too
        return torch.tensor(value, dtype=dtype, device=device)
