"""Codes to f32 by the few passes that a plain CPU does fast.

Torch converts float8 one element at a time. But a float8 code is the upper part of a float16
number: sign-extend it to 16 bits, shift it, clear the bit that the sign left between sign and
exponent, and call it float16. Subnormals come out right, only the exponent's offset is another,
and that is one factor (``unit``) for all codes. Sign extension, shift, mask and float16 to f32
are vector instructions everywhere. See docs/benchmarks/cpu.md for what else was tried.

>>> import torch
>>> codes = torch.tensor([[1.5, -448.0]]).to(torch.float8_e4m3fn)
>>> decoder = Decoder("fp8_e4m3")
>>> (decoder(codes) * decoder.unit).tolist()
[[1.5, -448.0]]
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from quantdock.formats import ELEMENTS
from quantdock.numerics import decode


@dataclass(frozen=True, slots=True, kw_only=True)
class Float16Bits:
    """How an 8-bit code becomes float16: ``unit * float16((code << shift) & mask)``.

    ``nan_mask`` and ``nan_bits`` say which codes are NaN and would come out as numbers.
    """

    shift: int
    mask: int  # as int16; -1 keeps every bit
    unit: float
    nan_mask: int = 0
    nan_bits: int = -1


_BELOW_SIGN = -0x4001  # every bit but the one below the sign
# The unit is 2 to the difference of the exponent offsets: 15 of float16; 7, 8 and 15 of these.
FLOAT16_BITS = {
    "fp8_e4m3": Float16Bits(shift=7, mask=_BELOW_SIGN, unit=2.0**8, nan_mask=0x7F, nan_bits=0x7F),
    "fp8_e4m3fnuz": Float16Bits(
        shift=7, mask=_BELOW_SIGN, unit=2.0**7, nan_mask=-1, nan_bits=-0x80
    ),
    "fp8_e5m2": Float16Bits(shift=8, mask=-1, unit=1.0),
}


def unit_of(element: str) -> float:
    """Return what one unit of a ``Decoder``'s result is worth."""
    return FLOAT16_BITS[element].unit if element in FLOAT16_BITS else 1.0


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
        self._bits = FLOAT16_BITS.get(element)
        self._shape: torch.Size | None = None

    def __call__(self, codes: Tensor) -> Tensor:
        """Return f32 [n, k] with ``codes == unit * result``, valid until the next call.

        Shapes:
            codes: [n, k] in the element's storage dtype, any strides.
        """
        if codes.shape != self._shape:
            self._shape = codes.shape
            self._values = codes.new_empty(codes.shape, dtype=torch.float32)
            if self._bits is not None:
                self._halves = codes.new_empty(codes.shape, dtype=torch.int16)
                self._steps = _constants(self.element, codes.device)
        if self._bits is None:
            return self._values.copy_(_as_numbers(codes, self.element))
        shift, mask = self._steps
        halves = self._halves.copy_(codes.view(torch.int8)).bitwise_left_shift_(shift)
        if self._bits.mask != -1:
            halves.bitwise_and_(mask)
        return self._values.copy_(halves.view(torch.float16))


@lru_cache(maxsize=64)
def _constants(element: str, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return shift and mask as tensors, which saves torch from wrapping numbers at each use."""
    bits = FLOAT16_BITS[element]
    with torch.inference_mode(False):  # they outlive this call and serve outside of it too
        return (
            torch.tensor(bits.shift, dtype=torch.int16, device=device),
            torch.tensor(bits.mask, dtype=torch.int16, device=device),
        )


def _as_numbers(codes: Tensor, element: str) -> Tensor:
    """Return ``codes`` in a dtype whose conversion to f32 is by value."""
    return decode(codes, element) if ELEMENTS[element].is_float else codes
