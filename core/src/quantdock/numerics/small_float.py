"""Floats of less than 8 bits, for which torch has no dtype: codes in the low bits of a uint8.

Sign, exponent and fraction lie as in any float, subnormals included, and every code is a finite
number. So a code is the upper part of a float16 whose exponent offset is another.

>>> import torch
>>> from quantdock.formats import ELEMENTS
>>> codes = encode_small(torch.tensor([0.25, -0.75, 2.5, 100.0]), ELEMENTS["fp4_e2m1"])
>>> codes.tolist(), decode_small(codes, ELEMENTS["fp4_e2m1"]).tolist()
([0, 10, 4, 7], [0.0, -1.0, 2.0, 6.0])
"""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from quantdock.formats import Element

_EXPONENT = 0x7F800000  # the exponent field of f32
_ROUNDER = 1.5 * 2.0**23  # adding it to v < 2^22 rounds v to whole numbers, ties to even
_LOWEST_HALF = -14  # the exponent of the smallest normal float16
_HALF_FRACTION_BITS = 10


def encode_small(values: Tensor, element: Element) -> Tensor:
    """Return the codes nearest to ``values``: ties to even, beyond the last one saturated, NaN 0.

    Shapes:
        values: f32, any shape. Returns uint8 of the same shape.
    """
    top = element.largest
    known = values.nan_to_num(nan=0.0, posinf=top, neginf=-top)
    grid = known.clamp(-top, top)
    binade = grid.view(torch.int32).bitwise_and(_EXPONENT).view(torch.float32)
    step = 2.0**-element.fraction_bits
    rounder = binade.clamp_(min=2.0**element.lowest_exponent).mul_(_ROUNDER * step)
    grid.add_(rounder).sub_(rounder)
    # With the exponents moved to where those of float16 begin, its bits are those of the code.
    grid.mul_(2.0 ** (_LOWEST_HALF - element.lowest_exponent)).copysign_(known)
    half = grid.to(torch.float16).view(torch.int16)
    sign = (half >> 16 - element.bits).bitwise_and_(1 << element.bits - 1)
    half.bitwise_right_shift_(_HALF_FRACTION_BITS - element.fraction_bits)
    return half.bitwise_and_((1 << element.bits - 1) - 1).bitwise_or_(sign).to(torch.uint8)


def decode_small(codes: Tensor, element: Element, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return what uint8 ``codes`` stand for; a byte that is no code becomes NaN."""
    table = torch.tensor(_values(element), dtype=dtype, device=codes.device)
    return table.index_select(0, codes.to(torch.int32).reshape(-1)).view(codes.shape)


@lru_cache(maxsize=16)
def _values(element: Element) -> tuple[float, ...]:
    """Return the value of each of the 256 bytes."""
    fraction = 1 << element.fraction_bits
    magnitudes = []
    for code in range(1 << element.bits - 1):
        exponent, part = divmod(code, fraction)
        mantissa = part + (fraction if exponent else 0)
        power = element.lowest_exponent + max(exponent - 1, 0)
        magnitudes.append(mantissa / fraction * 2.0**power)
    known = (*magnitudes, *(-value for value in magnitudes))
    return (*known, *[float("nan")] * (256 - len(known)))
