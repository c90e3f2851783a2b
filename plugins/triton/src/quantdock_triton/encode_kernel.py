"""Values to codes in Triton, as ``quantdock.numerics.quantize`` defines them, bit for bit.

True division, nearest code, ties to even, out of range to the last finite code, NaN kept.

Quotients of 16-bit values are products with the reciprocal of the scale in two parts, which have 42
correct bits together: no quotient is that near to where its code changes, but those that are there
and one that is 2^-48 above (tests/plugins/triton/test_quotients.py). Those of f32 are divided.
"""

from __future__ import annotations

import triton
import triton.language as tl

EXPONENT = tl.constexpr(0x7F800000)
LARGEST_F32 = tl.constexpr((2.0 - 2.0**-23) * 2.0**127)
SMALLEST_SCALE = tl.constexpr(2.0**-126)
FAR = tl.constexpr(2.0**60)
NEAR_ENOUGH = tl.constexpr(256.0)  # for larger codes, no scale of x is too far; tried for all bf16
BELOW = tl.constexpr(1.0 - 2.0**-22)
ABOVE = tl.constexpr(1.0 + 2.0**-21)
TO_WHOLE = tl.constexpr(1.5 * 2.0**23)  # adding it rounds |v| < 2^22 to whole numbers, ties to even
RECIPROCAL = tl.constexpr("rcp.approx.ftz.f32 $0, $1;")
# Four f32 to int8 in one word: nearest, ties to even, out of range to the last code, NaN to 0.
INT8_CODES = tl.constexpr(
    """{
    .reg .s32 a, b, c, d;
    cvt.rni.s32.f32 a, $1;
    cvt.rni.s32.f32 b, $2;
    cvt.rni.s32.f32 c, $3;
    cvt.rni.s32.f32 d, $4;
    cvt.pack.sat.s8.s32.b32 c, d, c, 0;
    cvt.pack.sat.s8.s32.b32 $0, b, a, c;
    }"""
)
# Two bf16 in one word to two f32.
WIDE_BF16 = tl.constexpr("shl.b32 $0, $2, 16; and.b32 $1, $2, 0xffff0000;")
# The same in other words, so that nobody keeps f32 values until they are asked for again.
WIDE_BF16_AGAIN = tl.constexpr("prmt.b32 $0, $2, 0, 0x1044; prmt.b32 $1, $2, 0, 0x3244;")
# The larger of two bf16 and the magnitudes of two others; NaN if one is.
LARGER_BF16 = tl.constexpr("{.reg .b32 a; abs.bf16x2 a, $2; max.NaN.bf16x2 $0, $1, a;}")
# Two f32 to two bf16, times two bf16.
TIMES_BF16 = tl.constexpr(
    """{
    .reg .b32 a, z;
    cvt.rn.bf16x2.f32 a, $2, $1;
    mov.b32 z, 0x80008000;
    fma.rn.bf16x2 $0, a, $3, z;
    }"""
)
# silu of two bf16, times two others.
SILU_MUL_BF16 = tl.constexpr(
    """{
    .reg .f32 a, b, c, d;
    .reg .b32 y, z;
    shl.b32 a, $1, 16;
    and.b32 b, $1, 0xffff0000;
    mul.f32 c, a, 0fBFB8AA3B;
    mul.f32 d, b, 0fBFB8AA3B;
    ex2.approx.ftz.f32 c, c;
    ex2.approx.ftz.f32 d, d;
    add.f32 c, c, 0f3F800000;
    add.f32 d, d, 0f3F800000;
    rcp.approx.ftz.f32 c, c;
    rcp.approx.ftz.f32 d, d;
    mul.f32 a, a, c;
    mul.f32 b, b, d;
    cvt.rn.bf16x2.f32 z, b, a;
    mov.b32 y, 0x80008000;
    fma.rn.bf16x2 $0, z, $2, y;
    }"""
)


@triton.jit
def wide(values, PTX: tl.constexpr):
    """Return values in f32."""
    if PTX and values.dtype == tl.bfloat16:
        return tl.inline_asm_elementwise(WIDE_BF16, "=r,=r,r", [values], dtype=tl.float32,
                                         is_pure=True, pack=2)  # fmt: skip
    else:
        return values.to(tl.float32)


@triton.jit
def wide_again(values, PTX: tl.constexpr):
    """Return values in f32, made from 16 bits anew instead of being kept: registers are short."""
    if PTX and values.dtype == tl.bfloat16:
        return tl.inline_asm_elementwise(WIDE_BF16_AGAIN, "=r,=r,r", [values], dtype=tl.float32,
                                         is_pure=True, pack=2)  # fmt: skip
    else:
        return values.to(tl.float32)


@triton.jit
def larger(a, b):
    """Return the larger of two magnitudes; NaN if one is."""
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def larger_of(most, values, PTX: tl.constexpr):
    """Return the larger of ``most`` and the magnitudes of values, in their dtype; NaN if one is."""
    if PTX and values.dtype == tl.bfloat16:
        return tl.inline_asm_elementwise(LARGER_BF16, "=r,r,r", [most, values], dtype=tl.bfloat16,
                                         is_pure=True, pack=2)  # fmt: skip
    else:
        return larger(most.to(tl.float32), tl.abs(values.to(tl.float32))).to(values.dtype)


@triton.jit
def divide(minus_values, divisor, minus_reciprocal):
    """Return the f32 quotients of values, rounded as by a true division.

    The remainder of a first estimate corrects it, in three steps a value. Both operands come
    negated, so that zeros keep their sign. An infinite estimate has no remainder.
    """
    estimate = minus_values * minus_reciprocal
    excess = tl.fma(estimate, divisor, minus_values)
    quotient = tl.fma(excess, minus_reciprocal, estimate)
    return tl.where(quotient == quotient, quotient, estimate)


@triton.jit
def scale_of(amax, TOP: tl.constexpr, CARRY: tl.constexpr):
    """Return the scale of tiles whose largest magnitudes are ``amax``: that divided by TOP.

    CARRY is added to the bits before they are cut to a power of two; -1 leaves them exact.
    """
    amax = tl.minimum(amax, LARGEST_F32, propagate_nan=tl.PropagateNan.ALL)
    amax = larger(amax, TOP * SMALLEST_SCALE)
    estimate = amax * (1.0 / TOP)
    scale = tl.fma(tl.fma(-estimate, TOP, amax), 1.0 / TOP, estimate)
    if CARRY >= 0:
        power = (scale.to(tl.int32, bitcast=True) + CARRY) & EXPONENT
        power = tl.maximum(power, 1 << 23).to(tl.float32, bitcast=True)
        scale = tl.where(scale == scale, power, scale)
    return scale


@triton.jit
def quotient_of_short(values, scale, IS_FAR: tl.constexpr, PTX: tl.constexpr):
    """Return what has the code of values / scale, for values of 16 bits and their own scale.

    The reciprocal's first part is below it, so that the second is above 0: infinity stays.
    """
    if IS_FAR:
        near = tl.where(scale > FAR, 1 / FAR, 1.0)
        scale *= near
        values *= near
    about = reciprocal_of(scale, PTX)
    high = about * BELOW
    low = tl.fma(-scale, high, 1.0) * (about * ABOVE)
    return tl.fma(values, high, values * low)


@triton.jit
def quotient_of(values, scale):
    """Return values / scale, rounded to f32 as by a true division.

    A far scale and its values are brought near by a power of two, so that no step underflows.
    """
    near = tl.where(scale < 1 / FAR, FAR, tl.where(scale > FAR, 1 / FAR, 1.0))
    divisor = scale * near
    reciprocal = 1.0 / divisor
    reciprocal = tl.fma(tl.fma(-divisor, reciprocal, 1.0), reciprocal, reciprocal)
    return divide(values * -near, divisor, -reciprocal)


@triton.jit
def reciprocal_of(scale, PTX: tl.constexpr):
    """Return about 1 / scale; of a power of two, exactly that."""
    if PTX:
        return tl.inline_asm_elementwise(RECIPROCAL, "=r,r", [scale], dtype=tl.float32,
                                         is_pure=True, pack=1)  # fmt: skip
    else:
        return 1.0 / scale


@triton.jit
def encode(values, scale, source: tl.constexpr, IS_FAR: tl.constexpr, LOWEST: tl.constexpr,
           LARGEST: tl.constexpr, PTX: tl.constexpr, dtype: tl.constexpr):  # fmt: skip
    """Return the codes of ``dtype`` nearest to values / scale.

    source: the dtype that the values have come from. IS_FAR: the scale may be so large that a
    small part of its reciprocal has few bits.
    """
    if source.primitive_bitwidth == 16:
        quotients = quotient_of_short(values, scale, IS_FAR, PTX)
    else:
        quotients = quotient_of(values, scale)
    return codes_of(quotients, LOWEST, LARGEST, PTX, dtype)


@triton.jit
def encode_tile(values, scale, source: tl.constexpr, CARRY: tl.constexpr, LOWEST: tl.constexpr,
                LARGEST: tl.constexpr, PTX: tl.constexpr, dtype: tl.constexpr):  # fmt: skip
    """Return what ``encode`` does for a scale that ``scale_of`` has made."""
    if CARRY >= 0:
        return codes_of(values * reciprocal_of(scale, PTX), LOWEST, LARGEST, PTX, dtype)
    else:
        return encode(values, scale, source, LARGEST < NEAR_ENOUGH, LOWEST, LARGEST, PTX, dtype)


@triton.jit
def codes_of(quotients, LOWEST: tl.constexpr, LARGEST: tl.constexpr, PTX: tl.constexpr,
             dtype: tl.constexpr):  # fmt: skip
    """Return the codes of ``dtype`` nearest to quotients.

    PTX: conversions of NVIDIA GPUs take what is out of range to the last code, and NaN to NaN or 0.
    """
    if PTX:
        if dtype == tl.int8:
            return tl.inline_asm_elementwise(INT8_CODES, "=r,r,r,r,r", [quotients], dtype=tl.int8,
                                             is_pure=True, pack=4)  # fmt: skip
        else:
            return quotients.to(dtype)
    clamped = tl.minimum(tl.maximum(quotients, LOWEST), LARGEST)
    if dtype == tl.int8:
        whole = (clamped + TO_WHOLE) - TO_WHOLE
        return tl.where(quotients == quotients, whole, 0.0).to(dtype)
    else:
        return tl.where(quotients == quotients, clamped, float("nan")).to(dtype)


@triton.jit
def load(x, inside, half, SILU: tl.constexpr, PTX: tl.constexpr):
    """Return values of x, in its dtype; or silu(gate) * up, where up is ``half`` columns further.

    Each step is rounded to x's dtype, as by torch's functions one after the other.
    """
    return load_through(x, inside, half, SILU, PTX, "")


@triton.jit
def load_through(x, inside, half, SILU: tl.constexpr, PTX: tl.constexpr, CACHE: tl.constexpr):
    """Return what ``load`` does; CACHE: ".cg" reads past the cache that may hold older values."""
    values = tl.load(x, mask=inside, other=0.0, cache_modifier=CACHE)
    if SILU:
        up = tl.load(x + half, mask=inside, other=0.0, cache_modifier=CACHE)
        if PTX and values.dtype == tl.bfloat16:
            return tl.inline_asm_elementwise(SILU_MUL_BF16, "=r,r,r", [values, up],
                                             dtype=tl.bfloat16, is_pure=True, pack=2)  # fmt: skip
        gate = values.to(tl.float32)
        gate = (gate / (1.0 + tl.exp(-gate))).to(values.dtype).to(tl.float32)
        values = (gate * up.to(tl.float32)).to(values.dtype)
    return values


@triton.jit
def times(values, factors, dtype: tl.constexpr, PTX: tl.constexpr):
    """Return the product of values, which are rounded to ``dtype`` first, with factors."""
    if PTX and dtype == tl.bfloat16 and factors.dtype == tl.bfloat16:
        return tl.inline_asm_elementwise(TIMES_BF16, "=r,r,r,r", [values, factors],
                                         dtype=tl.bfloat16, is_pure=True, pack=2)  # fmt: skip
    else:
        return (values.to(dtype).to(tl.float32) * factors.to(tl.float32)).to(dtype)
