"""Scales: how they are chosen, rounded, stored and read. In memory a scale is f32 and multiplies.

The smallest scale ever chosen is 2^-126, the smallest normal f32. So an all-zero tile has a finite
scale that every storage (f32, bf16, e8m0) holds exactly and that loses against any other scale
when fused shards fold by their maximum; its codes are 0. Scales in e4m3 have 2^-9 for it, the
smallest that e4m3 holds.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from quantdock.errors import FormatError
from quantdock.formats import EXPONENT_BYTES, QuantSpec
from quantdock.numerics.cast import decode, element_of, encode
from quantdock.numerics.dtypes import dtype_name, torch_dtype

SMALLEST_SCALE = 2.0**-126
# OCP MX gives the codes of MXINT8 a unit of 2^-6: its exponent bytes mean 2^(byte - 127 - 6).
MX_UNIT = {"int8": 2.0**-6}
_E4M3 = "fp8_e4m3"
_SMALLEST_E4M3 = 2.0**-9
_LARGEST_F32 = torch.finfo(torch.float32).max
_MANTISSA_BITS = 23  # of f32
_EXPONENT = 0x7F800000  # the exponent field of f32


def decode_scale(stored: Tensor) -> Tensor:
    """Return ``stored`` as f32: floats by value, bytes (uint8, float8_e8m0fnu) as 2^(byte - 127).

    Raises:
        FormatError: the dtype is neither.
    """
    if stored.dtype == torch.uint8:
        stored = stored.view(torch.float8_e8m0fnu)
    if not stored.dtype.is_floating_point:
        raise FormatError(
            f"A scale cannot be {stored.dtype}.",
            why=["known: float32, bfloat16, float16, float8_e8m0fnu, uint8 (exponent bytes)"],
            todo="Load the scale in the dtype that the checkpoint stores.",
        )
    return stored.to(torch.float32)


def encode_scale(scale: Tensor, storage: str) -> Tensor:
    """Return the f32 ``scale`` as a checkpoint stores it, in the dtype called ``storage``.

    Raises:
        FormatError: an 8-bit dtype was asked for, and it does not hold a scale exactly.
    """
    dtype = torch_dtype(storage)
    if storage not in EXPONENT_BYTES:
        rounded = scale.to(dtype)
        if rounded.element_size() == 1:
            _require_equal(rounded, scale, "value of it")
        return rounded
    stored = (scale.view(torch.int32) >> _MANTISSA_BITS).to(torch.uint8)
    stored = stored.view(dtype)
    _require_equal(stored, scale, "power of two from 2^-127 to 2^127")
    return stored


def decode_mx_scale(stored: Tensor, element: str) -> Tensor:
    """Return the f32 scales of exponent bytes in an OCP MX file, in which int8 has a unit of 2^-6.

    >>> decode_mx_scale(torch.tensor([127], dtype=torch.uint8), "int8").tolist()
    [0.015625]
    """
    return decode_scale(stored) * MX_UNIT.get(element, 1.0)


def encode_mx_scale(scale: Tensor, element: str, storage: str = "uint8") -> Tensor:
    """Return exponent bytes of an OCP MX file: the inverse of ``decode_mx_scale``."""
    return encode_scale(scale / MX_UNIT.get(element, 1.0), storage)


def _require_equal(stored: Tensor, scale: Tensor, kind: str) -> None:
    wrong = (decode_scale(stored) != scale) & ~scale.isnan()
    if bool(wrong.any()):
        raise FormatError(
            f"{int(wrong.sum())} of {scale.numel()} scales cannot be stored as "
            f"{dtype_name(stored.dtype)}.",
            why=[f"{scale[wrong][0].item()!r} is no {kind}"],
            todo="Quantize with scales of that kind (scale='e8m0', 'e4m3'), or round them first.",
        )


def round_scale(scale: Tensor, rounding: str, element: str) -> Tensor:
    """Return the f32 ``scale`` >= 0 as a power of two from 2^-126 to 2^127; NaN stays NaN.

    "ceil" rounds up; "floor" rounds down; "even" rounds to the mantissa bits that ``element`` has,
    ties away from zero, and then down; "exact" changes nothing.
    """
    if rounding == "exact":
        return scale
    carry = {
        "ceil": (1 << _MANTISSA_BITS) - 1,
        "floor": 0,
        "even": 1 << (_MANTISSA_BITS - 1 - element_of(element).fraction_bits),
    }[rounding]
    bits = (scale.view(torch.int32) + carry) & _EXPONENT
    power = bits.clamp(1 << _MANTISSA_BITS, 254 << _MANTISSA_BITS).view(torch.float32)
    return torch.where(scale.isnan(), scale, power)


def choose_scale(amax: Tensor, spec: QuantSpec, second: Tensor | None = None) -> Tensor:
    """Return the f32 scale of tiles whose largest magnitudes are ``amax``.

    "exact" and "ceil" divide ``amax`` by the element's largest value; "floor" and "even" divide it
    by the element's largest power of two (OCP MX 1.0, section 6.3). NaN stays NaN, so that a tile
    with NaN decodes to NaN in every element type; infinity counts as the largest f32.

    Args:
        second: the second scale of each tile, where the spec has one; it is divided out.
    """
    element = element_of(spec.element)
    top = element.largest
    if spec.rounding in ("floor", "even"):
        top = 2.0 ** math.floor(math.log2(top))
    amax = amax.clamp(top * SMALLEST_SCALE, _LARGEST_F32)
    return fit_scale(_divide(amax, top) if second is None else amax / (second * top), spec)


def choose_second_scale(amax: Tensor, spec: QuantSpec) -> Tensor:
    """Return the f32 second scale of tiles whose largest magnitudes are ``amax``.

    With it the largest first scale is e4m3's largest value (NVFP4). Above first scales of another
    kind it makes the codes times those fit into fp8_e4m3 (int4 in fp8).
    """
    amax, top = _second_range(amax, spec)
    return _divide(amax, top)


def choose_second_divisor(amax: Tensor, spec: QuantSpec) -> Tensor:
    """Return what files store that divide by it: ``1 / amax`` times the largest value, in f32.

    Source: compressed-tensors, which divides a number by a tensor, so that torch rounds twice.
    """
    amax, top = _second_range(amax, spec)
    return amax.reciprocal() * top


def _second_range(amax: Tensor, spec: QuantSpec) -> tuple[Tensor, float]:
    """Return ``amax`` in the range that a second scale serves, and what it is divided by."""
    top = element_of(_E4M3).largest
    least = SMALLEST_SCALE
    if spec.scale == "e4m3":
        top *= element_of(spec.element).largest
        least /= _SMALLEST_E4M3  # so that no product of both scales is less than SMALLEST_SCALE
    return amax.clamp(top * least, _LARGEST_F32), top


def choose_scale_and_zero(low: Tensor, high: Tensor, spec: QuantSpec) -> tuple[Tensor, Tensor]:
    """Return scale (f32) and zero point (int32) of tiles that span ``low`` <= 0 <= ``high``.

    The scale spreads the span over all codes; the zero point is the code of 0.0, so zero is exact.

    Raises:
        FormatError: the element is a float type, or the rounding is defined by a maximum only.
    """
    element = element_of(spec.element)
    if element.is_float or spec.rounding not in ("exact", "ceil"):
        raise FormatError(
            f"{spec} cannot have a zero point.",
            why=["zero points belong to integers with rounding 'exact' or 'ceil'"],
            todo="Drop zero=True.",
        )
    span = (high - low).clamp(max=_LARGEST_F32)
    steps = element.largest - element.lowest
    scale = fit_scale(_divide(span.clamp(min=steps * SMALLEST_SCALE), steps), spec)
    zero = element.lowest - (low / scale).round().nan_to_num(nan=0.0)
    return scale, zero.clamp(element.lowest, element.largest).to(torch.int32)


def fold_input(scale: Tensor, zero: Tensor | None, spec: QuantSpec) -> tuple[Tensor, Tensor | None]:
    """Return the one static scale, and zero point, for an input that fused shards share.

    Shards that were calibrated alike keep what they have. Others get the widest range: the largest
    scale, or with zero points a scale and a zero point for all that any of them could represent.

    Shapes:
        scale: f32, one per shard. zero: int32, as scale. Returns f32 [] and int32 [].
    """
    scale = scale.reshape(-1)
    if zero is None:
        return scale.amax(), None
    zero = zero.reshape(-1)
    if scale.numel() == 1:
        return scale[0], zero[0]
    element = element_of(spec.element)
    low = ((element.lowest - zero) * scale).amin().clamp(max=0.0)
    high = ((element.largest - zero) * scale).amax().clamp(min=0.0)
    wide_scale, wide_zero = choose_scale_and_zero(low, high, spec)
    alike = ((scale == scale[0]) & (zero == zero[0])).all()
    return torch.where(alike, scale[0], wide_scale), torch.where(alike, zero[0], wide_zero)


def _divide(values: Tensor, divisor: float) -> Tensor:
    """Return the true quotient; given a Python number, accelerators multiply by its reciprocal."""
    return values / values.new_full((), divisor)


def fit_scale(scale: Tensor, spec: QuantSpec) -> Tensor:
    """Return the f32 ``scale`` rounded to what the spec's rounding and scale type hold."""
    scale = round_scale(scale, spec.rounding, spec.element)
    if spec.scale == "e4m3":
        return decode(encode(scale.clamp(min=_SMALLEST_E4M3), _E4M3), _E4M3)
    return _round_to_bf16(scale) if spec.scale == "bf16" else scale


def _round_to_bf16(scale: Tensor) -> Tensor:
    """Return the nearest bf16 values, ties to even, as f32.

    On the bits, because compilers drop a cast to bf16 that a cast back follows.
    """
    bits = scale.view(torch.int32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) & -0x10000
    return torch.where(scale.isnan(), scale, rounded.view(torch.float32))
