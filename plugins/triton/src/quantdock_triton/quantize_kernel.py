"""Activations to codes and scales in Triton: one read of x, one write of the codes.

The numbers are those of ``quantdock.numerics.quantize``, bit for bit: true division, nearest code,
ties to even, out of range to the last finite code, NaN kept. Magnitudes are compared as the bits
of their f32, where NaN is the largest and no reduction drops it.
"""

from __future__ import annotations

import triton
import triton.language as tl

MAGNITUDE = tl.constexpr(0x7FFFFFFF)
EXPONENT = tl.constexpr(0x7F800000)
LARGEST_BITS = tl.constexpr(0x7F7FFFFF)  # of the largest f32
SMALLEST_SCALE = tl.constexpr(2.0**-126)
FAR = tl.constexpr(2.0**60)
TO_WHOLE = tl.constexpr(1.5 * 2.0**23)  # adding it rounds |v| < 2^22 to whole numbers, ties to even


@triton.jit
def bits_of(values):
    """Return the bits of the magnitudes."""
    return values.to(tl.int32, bitcast=True) & MAGNITUDE


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
def scale_of(bits, TOP: tl.constexpr, CARRY: tl.constexpr):
    """Return the scale of tiles whose largest magnitudes have these bits: that divided by TOP.

    CARRY is added to the bits before they are cut to a power of two; -1 leaves them exact.
    """
    is_nan = bits > EXPONENT
    amax = tl.minimum(bits, LARGEST_BITS).to(tl.float32, bitcast=True)
    scale = divide(-tl.maximum(amax, TOP * SMALLEST_SCALE), TOP, -1.0 / TOP)
    if CARRY >= 0:
        power = (scale.to(tl.int32, bitcast=True) + CARRY) & EXPONENT
        power = tl.minimum(tl.maximum(power, 1 << 23), 254 << 23)
        scale = power.to(tl.float32, bitcast=True)
    return tl.where(is_nan, float("nan"), scale)


@triton.jit
def encode(values, scale, LOWEST: tl.constexpr, LARGEST: tl.constexpr, SATURATES: tl.constexpr,
           dtype: tl.constexpr):  # fmt: skip
    """Return the codes of ``dtype`` nearest to values / scale.

    SATURATES: the device's conversion to fp8 takes what is out of range, infinity too, to the last
    finite code, and NaN to NaN. A far scale and its values are brought near by a power of two, so
    that no step of the division underflows.
    """
    near = tl.where(scale < 1 / FAR, FAR, tl.where(scale > FAR, 1 / FAR, 1.0))
    divisor = scale * near
    reciprocal = 1.0 / divisor
    reciprocal = tl.fma(tl.fma(-divisor, reciprocal, 1.0), reciprocal, reciprocal)
    values = divide(values * -near, divisor, -reciprocal)
    if dtype == tl.int8:
        whole = (tl.minimum(tl.maximum(values, LOWEST), LARGEST) + TO_WHOLE) - TO_WHOLE
        return tl.where(values == values, whole, 0.0).to(dtype)
    elif SATURATES:
        return values.to(dtype)
    else:
        clamped = tl.minimum(tl.maximum(values, LOWEST), LARGEST)
        return tl.where(values == values, clamped, float("nan")).to(dtype)


@triton.jit(do_not_specialize=["m", "scale_row", "scale_group"])
def quantize_tiles(
    x, codes, scales, m, k, groups, stride_x, stride_codes, scale_row, scale_group,
    SIZE: tl.constexpr, ROWS: tl.constexpr, GROUPS: tl.constexpr, WIDTH: tl.constexpr,
    STAGES: tl.constexpr, LOWEST: tl.constexpr, LARGEST: tl.constexpr, SATURATES: tl.constexpr,
    TOP: tl.constexpr, CARRY: tl.constexpr,
):  # fmt: skip
    """Quantize ROWS x GROUPS tiles of one row and SIZE columns, of every so many rows.

    WIDTH holds a tile. STAGES - 1 turns are read ahead.
    """
    group = (tl.program_id(1) * GROUPS + tl.arange(0, GROUPS))[None, :, None]
    column = tl.arange(0, WIDTH)[None, None, :]
    columns = group * SIZE + column
    for top in tl.range(tl.program_id(0) * ROWS, m, tl.num_programs(0) * ROWS, num_stages=STAGES):
        rows = (top + tl.arange(0, ROWS)).to(tl.int64)[:, None, None]
        inside = (rows < m) & (columns < k)
        if SIZE < WIDTH:
            inside &= column < SIZE
        values = tl.load(x + rows * stride_x + columns, mask=inside, other=0.0).to(tl.float32)
        scale = scale_of(tl.max(bits_of(values), axis=2), TOP, CARRY)[:, :, None]
        found = encode(values, scale, LOWEST, LARGEST, SATURATES, codes.dtype.element_ty)
        tl.store(codes + rows * stride_codes + columns, found, mask=inside)
        places = scales + rows * scale_row + group.to(tl.int64) * scale_group
        tl.store(places, scale, mask=(rows < m) & (group < groups))


@triton.jit
def quantize_long_row(
    x, codes, scales, k, stride_x, stride_codes, WIDTH: tl.constexpr, LOWEST: tl.constexpr,
    LARGEST: tl.constexpr, SATURATES: tl.constexpr, TOP: tl.constexpr, CARRY: tl.constexpr,
):  # fmt: skip
    """Quantize one row in turns of WIDTH columns; the second look at x finds it in cache."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, WIDTH)
    most = tl.zeros([WIDTH], dtype=tl.int32)
    for left in range(0, k, WIDTH):
        inside = left + column < k
        values = tl.load(x + row * stride_x + left + column, mask=inside, other=0.0)
        most = tl.maximum(most, bits_of(values.to(tl.float32)))
    scale = scale_of(tl.max(most, axis=0), TOP, CARRY)
    tl.store(scales + row, scale)
    for left in range(0, k, WIDTH):
        inside = left + column < k
        values = tl.load(x + row * stride_x + left + column, mask=inside, other=0.0)
        found = encode(values.to(tl.float32), scale, LOWEST, LARGEST, SATURATES,
                       codes.dtype.element_ty)  # fmt: skip
        tl.store(codes + row * stride_codes + left + column, found, mask=inside)


@triton.jit
def encode_block(x, codes, scale, m, k, stride_x, stride_codes, ROWS: tl.constexpr,
                 WIDTH: tl.constexpr, LOWEST: tl.constexpr, LARGEST: tl.constexpr,
                 SATURATES: tl.constexpr):  # fmt: skip
    """Quantize this program's ROWS x WIDTH values with one scale."""
    rows = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)[:, None]
    columns = (tl.program_id(1) * WIDTH + tl.arange(0, WIDTH))[None, :]
    inside = (rows < m) & (columns < k)
    values = tl.load(x + rows * stride_x + columns, mask=inside, other=0.0).to(tl.float32)
    found = encode(values, scale, LOWEST, LARGEST, SATURATES, codes.dtype.element_ty)
    tl.store(codes + rows * stride_codes + columns, found, mask=inside)


@triton.jit(do_not_specialize=["m"])
def quantize_static(
    x, codes, input_scale, folded_scale, m, k, stride_x, stride_codes,
    NUM: tl.constexpr, NUM_WIDTH: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr,
    LOWEST: tl.constexpr, LARGEST: tl.constexpr, SATURATES: tl.constexpr,
):  # fmt: skip
    """Quantize all of x with the largest of NUM scales, which is stored too."""
    index = tl.arange(0, NUM_WIDTH)
    scale = tl.max(tl.load(input_scale + index, mask=index < NUM, other=0.0), axis=0)
    if (tl.program_id(0) == 0) & (tl.program_id(1) == 0):
        tl.store(folded_scale, scale)
    # A stored scale of 0 marks zeros; 0 / 0 would be NaN.
    scale = tl.maximum(scale, SMALLEST_SCALE)
    encode_block(x, codes, scale, m, k, stride_x, stride_codes, ROWS, WIDTH, LOWEST, LARGEST,
                 SATURATES)  # fmt: skip


@triton.jit(do_not_specialize=["m"])
def largest_of_parts(
    x, parts, m, k, stride_x, ROWS: tl.constexpr, WIDTH: tl.constexpr
):  # fmt: skip
    """Store the bits of the largest magnitude of every so many rows for each program."""
    most = tl.zeros([ROWS, WIDTH], dtype=tl.int32)
    column = tl.arange(0, WIDTH)[None, :]
    row = tl.arange(0, ROWS)[:, None]
    for top in range(tl.program_id(0) * ROWS, m, tl.num_programs(0) * ROWS):
        rows = (top + row).to(tl.int64)
        for left in range(0, k, WIDTH):
            inside = (rows < m) & (left + column < k)
            values = tl.load(x + rows * stride_x + left + column, mask=inside, other=0.0)
            most = tl.maximum(most, bits_of(values.to(tl.float32)))
    tl.store(parts + tl.program_id(0), tl.max(tl.max(most, axis=1), axis=0))


@triton.jit(do_not_specialize=["m", "num_parts"])
def quantize_whole(
    x, codes, parts, num_parts, scales, m, k, stride_x, stride_codes,
    NUM_WIDTH: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr, LOWEST: tl.constexpr,
    LARGEST: tl.constexpr, SATURATES: tl.constexpr, TOP: tl.constexpr, CARRY: tl.constexpr,
):  # fmt: skip
    """Quantize all of x with the one scale that its parts give, which is stored too."""
    index = tl.arange(0, NUM_WIDTH)
    bits = tl.max(tl.load(parts + index, mask=index < num_parts, other=0), axis=0)
    scale = scale_of(bits, TOP, CARRY)
    if (tl.program_id(0) == 0) & (tl.program_id(1) == 0):
        tl.store(scales, scale)
    encode_block(x, codes, scale, m, k, stride_x, stride_codes, ROWS, WIDTH, LOWEST, LARGEST,
                 SATURATES)  # fmt: skip
