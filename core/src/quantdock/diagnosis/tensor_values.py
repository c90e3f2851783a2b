"""What is wrong with the values of one stored tensor or weight; each fault in words of its own.

>>> import torch
>>> [fault.text for fault in plain_faults(torch.tensor([[1.0, torch.nan]]), "float32")]
['holds NaN']
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import torch
from torch import Tensor

from quantdock.formats import ELEMENTS
from quantdock.methods.sound_scales import find_fault, may_be_negative
from quantdock.numerics import (
    SMALLEST_SCALE,
    CanonicalWeight,
    Segment,
    decode,
    expand_scale,
    torch_dtype,
)

_NARROW = "float16"
_LARGEST_NARROW = 65504.0
# Outside of these no weight of a trained model lies: a scale that was meant to divide does.
_LARGEST_WEIGHT, _LEAST_WEIGHT = 2.0**14, 2.0**-24
_LARGEST_INPUT_SCALE, _LEAST_INPUT_SCALE = 2.0**14, 2.0**-30


@dataclass(frozen=True, slots=True)
class ValueFault:
    """One fault; ``text`` continues the tensor's name, ``todo`` says what to do."""

    level: Literal["fail", "warn"]
    text: str
    todo: str


_DAMAGED = "The file is damaged or the quantizer failed: download or quantize it again."
_CALIBRATE = "Calibrate again; a scale that was never set gives wrong sizes."
_RECIPROCAL = "Check whether this tool stores scales that divide, or in another dtype."


def plain_faults(tensor: Tensor, dtype: str) -> Iterator[ValueFault]:
    """Yield what is wrong with a plain float tensor that will be cast to ``dtype``."""
    if tensor.numel() == 0:
        return
    low, high = (float(end) for end in tensor.aminmax())
    if math.isnan(low) or math.isnan(high):
        yield ValueFault("fail", "holds NaN", _DAMAGED)
    elif math.isinf(low) or math.isinf(high):
        yield ValueFault("fail", "holds infinity", _DAMAGED)
    elif low == high == 0.0 and tensor.dim() > 1:
        yield ValueFault("warn", "is all zeros", "Find out whether this layer was ever written.")
    else:
        yield from _range_fault(max(-low, high), dtype)


def weight_faults(weight: CanonicalWeight, dtype: str) -> Iterator[ValueFault]:
    """Yield what is wrong with scales and codes of a weight; ``dtype`` is that of activations."""
    faults = [fault for segment in weight.segments for fault in _segment_faults(segment, dtype)]
    yield from dict.fromkeys(faults)
    if weight.input_scale is not None:
        yield from input_scale_faults(weight.input_scale)


def input_scale_faults(scale: Tensor, word: str = "input scale") -> Iterator[ValueFault]:
    """Yield what is wrong with static scales of activations, or of keys and values."""
    if bad := _bad_numbers(scale, word):
        yield bad
    elif bool((scale == 0).any()):
        yield ValueFault("fail", f"has an {word} of 0", _CALIBRATE)
    elif float(scale.amax()) > _LARGEST_INPUT_SCALE or float(scale.amin()) < _LEAST_INPUT_SCALE:
        text = f"has an {word} of {float(scale.amax()):.3g}, which no activation needs"
        yield ValueFault("warn", text, _CALIBRATE)
    elif bool((scale == 1).all()):
        yield ValueFault("warn", f"has an {word} of 1.0, the default", _CALIBRATE)


def _segment_faults(segment: Segment, dtype: str) -> Iterator[ValueFault]:
    counts, values = _histogram(segment.codes, segment.spec.element)
    if nan := int(counts[values.isnan()].sum()):
        text = f"has {nan:,} code{'s' * (nan > 1)} that {'are' if nan > 1 else 'is'} NaN"
        yield ValueFault("fail", text, _DAMAGED)
    used = values[(counts > 0) & values.isfinite()].abs()
    largest = float(used.max()) if used.numel() else 0.0
    if bad := _bad_numbers(segment.scale, "scale", is_signed=may_be_negative(segment.spec)):
        yield bad
        return
    if segment.second_scale is not None and (
        bad := _bad_numbers(segment.second_scale, "second scale")
    ):
        yield bad
        return
    if segment.zero is None and largest == 0.0:
        yield ValueFault("warn", "is all zeros", "Find out whether this layer was ever written.")
        return
    if zeros := _lost_tiles(segment):
        text = f"has {zeros:,} weights that are not zero under a scale of 0"
        yield ValueFault("fail", text, _DAMAGED)
    yield from _scale_faults(segment.scale, segment.second_scale, largest, dtype)


def _scale_faults(
    scale: Tensor, second: Tensor | None, largest: float, dtype: str
) -> Iterator[ValueFault]:
    """Yield what is odd about finite scales of codes up to ``largest``, and those above them."""
    if bool((scale == 1).all()):
        yield ValueFault("warn", f"has {_count(scale)} of 1.0, the default", _CALIBRATE)
        return
    under = ""
    if second is not None:
        top = float(second.amax())
        largest, under = largest * top, f" under a second scale of {top:.2g}"
    scale = scale.abs()
    high = float(scale.amax())
    used = scale[scale > SMALLEST_SCALE]
    low = float(used.amin()) if used.numel() else high
    if high * largest > _LARGEST_WEIGHT or high * largest < _LEAST_WEIGHT:
        weights = f"weights up to {high * largest:.2g}"
        text = f"has scales from {low:.2g} to {high:.2g}{under}, {weights}"
        yield ValueFault("warn", text, _RECIPROCAL)
    yield from _range_fault(high * largest, dtype)


def _range_fault(largest: float, dtype: str) -> Iterator[ValueFault]:
    if dtype == _NARROW and largest > _LARGEST_NARROW:
        text = f"reaches {largest:.3g}, and float16 ends at {_LARGEST_NARROW:.0f}"
        yield ValueFault("fail", text, "Run it in bfloat16 or float32 (--dtype).")


def _bad_numbers(scale: Tensor, word: str, *, is_signed: bool = False) -> ValueFault | None:
    """Return the fault of scales that are NaN, infinite or negative, the first of these."""
    fault = find_fault(scale, may_be_negative=is_signed)
    if fault is None:
        return None
    text = (
        f"has {fault.count:,} of {fault.total:,} {word}s {fault.kind}, the first at "
        f"{list(fault.first)}"
    )
    return ValueFault("fail", text, _DAMAGED)


def _lost_tiles(segment: Segment) -> int:
    """Return how many codes that are not zero lie under a scale of 0."""
    is_zero = segment.scale == 0
    if not bool(is_zero.any()):
        return 0
    n, k = segment.codes.shape
    hidden = expand_scale(is_zero.to(torch.float32), segment.spec, n, k) > 0
    return int((hidden & (decode(segment.codes, segment.spec.element) != 0)).sum())


def _histogram(codes: Tensor, element: str) -> tuple[Tensor, Tensor]:
    """Return how often each of the 256 bytes occurs, and the value it stands for.

    Shapes:
        codes: [N, K], one code per byte. Returns int64 [256] and f32 [256].
    """
    counts = torch.bincount(codes.contiguous().view(torch.uint8).flatten(), minlength=256)
    return counts, _table(element)


@lru_cache(maxsize=64)
def _table(element: str) -> Tensor:
    every = torch.arange(256, dtype=torch.uint8).view(torch_dtype(ELEMENTS[element].storage))
    return decode(every, element)


def _count(scale: Tensor) -> str:
    return "its scale" if scale.numel() == 1 else f"all {scale.numel():,} scales"
