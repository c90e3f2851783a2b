"""Floats of less than 8 bits, for which torch has no dtype: codes in the low bits of a uint8.

Sign, exponent and fraction lie as in any float, subnormals included; every code is a finite number.

>>> import torch
>>> from quantdock.formats import ELEMENTS
>>> codes = encode_small(torch.tensor([0.25, -0.75, 2.5, 100.0]), ELEMENTS["fp4_e2m1"])
>>> codes.tolist(), decode_small(codes, ELEMENTS["fp4_e2m1"]).tolist()
([0, 10, 4, 7], [0.0, -1.0, 2.0, 6.0])
"""

from __future__ import annotations

import torch
from torch import Tensor

from quantdock.formats import ELEMENTS, Element

_EXPONENT, _FRACTION_BITS, _BIAS = 0x7F800000, 23, 127  # of f32
_ROUNDER = 1.5 * 2.0**23  # adding it to v < 2^22 rounds v to whole numbers, ties to even
_STEPS = (1 << 22) - 1


def encode_small(values: Tensor, element: Element) -> Tensor:
    """Return the codes nearest to ``values``: ties to even, beyond the last one saturated, NaN 0.

    Shapes:
        values: f32, any shape. Returns uint8 of the same shape.
    """
    top, fraction = element.largest, element.fraction_bits
    known = values.nan_to_num(nan=0.0, posinf=top, neginf=-top)
    magnitude = known.abs().clamp_(max=top)
    binade = magnitude.view(torch.int32).bitwise_and(_EXPONENT).view(torch.float32)
    binade.clamp_(min=2.0**element.lowest_exponent)
    # The sum's low bits count the steps of the binade: up to 2^fraction below the smallest normal
    # value, twice that at the end of a binade. Each binade that lies below adds 2^fraction.
    steps = magnitude.add_(binade * (_ROUNDER * 2.0**-fraction)).view(torch.int32)
    below = binade.view(torch.int32).bitwise_right_shift_(_FRACTION_BITS - fraction)
    code = steps.bitwise_and_(_STEPS).add_(below).sub_(_BIAS + element.lowest_exponent << fraction)
    sign = (known.view(torch.int32) >> 32 - element.bits).bitwise_and_(1 << element.bits - 1)
    return code.bitwise_or_(sign).to(torch.uint8)


def decode_small(codes: Tensor, element: Element, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return what uint8 ``codes`` stand for; a byte that is no code becomes NaN."""
    table = torch.tensor(_VALUES[element.name], dtype=dtype, device=codes.device)
    return table.index_select(0, codes.to(torch.int32).reshape(-1)).view(codes.shape)


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


# Made at import, because torch.compile cannot trace a cache.
_VALUES = {e.name: _values(e) for e in ELEMENTS.values() if e.is_float and e.bits < 8}
