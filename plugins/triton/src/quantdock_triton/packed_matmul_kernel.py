"""Products with packed integer codes (packed_layout.py), unpacked in registers, in Triton.

The weight is the left operand of each product, so that few rows of x waste no tensor core. A code
becomes a 16-bit float without a conversion: put below the exponent of 2^7 (bfloat16) or 2^10
(float16) it is that power of two plus the code, and subtracting the power and the zero point is
exact. The sum of a group is multiplied with its scale in f32, so nothing is rounded but x's sums;
FOLDED, for many rows of x, multiplies weights instead and rounds them to 16 bits.
"""

from __future__ import annotations

import triton
import triton.language as tl

from quantdock_triton.matmul_kernel import sum_of_parts

ROWS = tl.constexpr(64)  # of a block of words
FLOAT_BASE = tl.constexpr(0x4B000000)  # 2^23 as f32: a whole number below it is 2^23 plus that
FLOAT_VALUE = tl.constexpr(8388608.0)
BFLOAT16_VALUE, FLOAT16_VALUE = tl.constexpr(128.0), tl.constexpr(1024.0)


def _two_codes(base: int, one: int, add: str) -> tuple[str, ...]:
    """Return PTX, for each place in a word, that unpacks the codes of two words."""
    return tuple(
        "{ .reg .b32 both, base, one;"
        f" mov.b32 base, {base:#010x}; mov.b32 one, {one:#010x};"
        f" shr.b32 both, $1, {place};"
        " lop3.b32 both, both, 0x000f000f, base, 0xea;"  # (both & mask) | base
        f" {add} $0, both, one, $2; }}"
        for place in range(0, 16, 4)
    )


def _two_bytes(kind: str) -> tuple[str, ...]:
    """Return PTX, for both places in a word, that unpacks the codes of two words."""
    return tuple(
        "{ .reg .b32 first, second, base; .reg .f32 a, b, c, d;"
        " mov.b32 base, 0x4B000000;"
        f" prmt.b32 first, $1, base, {0x7650 + place:#06x};"  # 2^23 and the code, as f32
        f" prmt.b32 second, $1, base, {0x7652 + place:#06x};"
        " mov.b32 a, first; mov.b32 b, second; mov.b32 c, $2; mov.b32 d, $3;"
        " add.f32 a, a, c; add.f32 b, b, d;"
        f" cvt.rn.{kind}x2.f32 $0, b, a; }}"
        for place in range(2)
    )


BFLOAT16_CODES = tl.constexpr(_two_codes(0x43004300, 0x3F803F80, "fma.rn.bf16x2"))
FLOAT16_CODES = tl.constexpr(_two_codes(0x64006400, 0x3C003C00, "fma.rn.f16x2"))
BFLOAT16_BYTES, FLOAT16_BYTES = tl.constexpr(_two_bytes("bf16")), tl.constexpr(_two_bytes("f16"))


@triton.jit
def whole_codes(words, PLACE: tl.constexpr, BITS: tl.constexpr):
    """Return the codes at one place of words, as f32 that are 2^23 too large."""
    codes = (words >> (BITS * PLACE)).to(tl.int32) & ((1 << BITS) - 1)
    return (codes | FLOAT_BASE).to(tl.float32, bitcast=True)


@triton.jit
def subtrahend(zero, BITS: tl.constexpr, PTX: tl.constexpr, dtype: tl.constexpr):
    """Return what is added to codes as they are unpacked; exact in ``dtype``."""
    if BITS == 4 and PTX:
        if dtype == tl.bfloat16:
            return (-BFLOAT16_VALUE - zero).to(dtype)
        else:
            return (-FLOAT16_VALUE - zero).to(dtype)
    else:
        return -FLOAT_VALUE - zero


@triton.jit
def centered(words, added, PLACE: tl.constexpr, BITS: tl.constexpr, PTX: tl.constexpr,
             dtype: tl.constexpr):  # fmt: skip
    """Return ``code - zero`` of the codes at one place of words, in ``dtype``."""
    if BITS == 4 and PTX:
        if dtype == tl.bfloat16:
            return tl.inline_asm_elementwise(BFLOAT16_CODES[PLACE], "=r,r,r", [words, added],
                                             dtype=added.dtype, is_pure=True, pack=2)  # fmt: skip
        else:
            return tl.inline_asm_elementwise(FLOAT16_CODES[PLACE], "=r,r,r", [words, added],
                                             dtype=added.dtype, is_pure=True, pack=2)  # fmt: skip
    elif PTX and dtype == tl.bfloat16:
        return tl.inline_asm_elementwise(BFLOAT16_BYTES[PLACE], "=r,r,r,r", [words, added],
                                         dtype=tl.bfloat16, is_pure=True, pack=2)  # fmt: skip
    elif PTX:
        return tl.inline_asm_elementwise(FLOAT16_BYTES[PLACE], "=r,r,r,r", [words, added],
                                         dtype=tl.float16, is_pure=True, pack=2)  # fmt: skip
    else:
        return (whole_codes(words, PLACE, BITS) + added).to(dtype)


@triton.jit
def place_of(columns, plane, groups, stride, PER_GROUP: tl.constexpr):
    """Return where the scales and zero points lie of the group that a plane belongs to.

    Planes that fill up the edge belong to the last group.
    """
    if PER_GROUP == 0:
        return columns.to(tl.int64)
    else:
        return columns + tl.minimum(plane // PER_GROUP, groups - 1).to(tl.int64) * stride


@triton.jit
def added_of(zero, place, MIDDLE: tl.constexpr, BITS: tl.constexpr, PTX: tl.constexpr,
             dtype: tl.constexpr):  # fmt: skip
    """Return what is added to codes: minus their zero point and what unpacking made of them.

    Zero points that are f32, as scales are then, are copied ahead with the words.
    """
    if zero is None:
        return subtrahend(tl.full([1], MIDDLE, tl.float32), BITS, PTX, dtype)
    else:
        return subtrahend(tl.load(zero + place).to(tl.float32), BITS, PTX, dtype)


@triton.jit
def scales_of(scale, columns, step, groups, stride, PER_GROUP: tl.constexpr,
              PLANES: tl.constexpr, RUN: tl.constexpr):  # fmt: skip
    """Return the scales of up to four groups of a block."""
    plane = step * PLANES
    place = place_of(columns, plane, groups, stride, PER_GROUP)
    s0 = tl.load(scale + place).to(tl.float32)
    s1, s2, s3 = s0, s0, s0
    if PLANES // RUN >= 2:
        place = place_of(columns, plane + RUN, groups, stride, PER_GROUP)
        s1 = tl.load(scale + place).to(tl.float32)
    if PLANES // RUN == 4:
        place = place_of(columns, plane + 2, groups, stride, PER_GROUP)
        s2 = tl.load(scale + place).to(tl.float32)
        place = place_of(columns, plane + 3, groups, stride, PER_GROUP)
        s3 = tl.load(scale + place).to(tl.float32)
    return s0, s1, s2, s3


@triton.jit
def chosen(s0, s1, s2, s3, INDEX: tl.constexpr):
    """Return one of four."""
    low = s0 if INDEX % 2 == 0 else s1
    high = s2 if INDEX % 2 == 0 else s3
    return low if INDEX < 2 else high


@triton.jit
def store_result(total, out, scale, bias, columns, rows, has_row, n, stride_out,
                 BY_ROW: tl.constexpr):  # fmt: skip
    """Scale the sum where one scale serves a whole row of the weight, add the bias, store."""
    has_column = columns < n
    if BY_ROW:
        factor = tl.load(scale + columns, mask=has_column, other=0.0)
        total *= factor.to(tl.float32)[:, None]
    if bias is not None:
        total += tl.load(bias + columns, mask=has_column, other=0.0).to(tl.float32)[:, None]
    at = out + rows.to(tl.int64)[:, None] * stride_out + columns[None, :]
    result = tl.trans(total).to(out.dtype.element_ty)
    tl.store(at, result, mask=has_row & has_column[None, :])


@triton.jit
def product_of_run(total, taken, added, factor, x, has_row, start, word, k, FIRST: tl.constexpr,
                   RUN: tl.constexpr, BITS: tl.constexpr, PLANE: tl.constexpr,
                   FOLDED: tl.constexpr, EVEN_K: tl.constexpr, PTX: tl.constexpr):  # fmt: skip
    """Return ``total`` plus the product with RUN planes of words, of one group, from FIRST."""
    dtype: tl.constexpr = x.dtype.element_ty
    for place in tl.static_range(FIRST, FIRST + RUN):
        column = start + place * PLANE
        inside = has_row if EVEN_K else has_row & (word < k - column)
        given = tl.load(x + column, mask=inside, other=0.0)
        weight = centered(taken, added[:, None], place, BITS, PTX, dtype)
        if FOLDED:
            weight *= factor[:, None]
        total = tl.dot(weight, tl.trans(given), total)
    return total


@triton.jit
def packed_sum(x, has_row, words, scale, zero, columns, word, k, groups, stride, first, last,
               BITS: tl.constexpr, PLANE: tl.constexpr, TAKEN: tl.constexpr,
               PER_GROUP: tl.constexpr, RUN: tl.constexpr, MIDDLE: tl.constexpr,
               FOLDED: tl.constexpr, EVEN_K: tl.constexpr, PTX: tl.constexpr,
               BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):  # fmt: skip
    """Return the sum over some turns [BLOCK_N, BLOCK_M]; x and words point to their rows."""
    PLANES: tl.constexpr = 16 // BITS
    HALVES: tl.constexpr = PLANE // TAKEN
    dtype: tl.constexpr = x.dtype.element_ty
    total = tl.zeros([BLOCK_N, BLOCK_M], dtype=tl.float32)
    unset = tl.zeros([BLOCK_N, BLOCK_M], dtype=tl.float32)
    # Scales are asked for a turn before they are needed.
    s0, s1, s2, s3 = scales_of(scale, columns, first // HALVES, groups, stride, PER_GROUP,
                               PLANES, RUN)  # fmt: skip
    for turn in range(first, last):
        step, start = turn // HALVES, turn % HALVES * TAKEN
        taken = tl.load(words + step * (ROWS * PLANE) + start)
        for run in tl.static_range(PLANES // RUN):
            place = place_of(columns, step * PLANES + run * RUN, groups, stride, PER_GROUP)
            added = added_of(zero, place, MIDDLE, BITS, PTX, dtype)
            factor = chosen(s0, s1, s2, s3, run)
            if FOLDED:
                factor = tl.load(scale + place).to(tl.float32).to(dtype)
            product = product_of_run(total if FOLDED or PER_GROUP == 0 else unset, taken, added,
                                     factor, x, has_row, start + step * (PLANES * PLANE), word, k,
                                     run * RUN, RUN, BITS, PLANE, FOLDED, EVEN_K,
                                     PTX)  # fmt: skip
            if FOLDED or PER_GROUP == 0:
                total = product
            else:
                total += product * factor[:, None]
        if not FOLDED:
            ahead = tl.minimum(turn + 1, last - 1) // HALVES
            s0, s1, s2, s3 = scales_of(scale, columns, ahead, groups, stride, PER_GROUP,
                                       PLANES, RUN)  # fmt: skip
    return total


@triton.jit(do_not_specialize=["m", "first_row", "n", "steps", "groups", "stride_scale",
                               "stride_out", "parts"])  # fmt: skip
def packed_matmul(x, words, scale, zero, bias, out, partial, counters, m, first_row, n, k, steps,
                  groups, stride_x, stride_scale, stride_out, parts, BITS: tl.constexpr,
                  PLANE: tl.constexpr, TAKEN: tl.constexpr, PER_GROUP: tl.constexpr,
                  RUN: tl.constexpr, MIDDLE: tl.constexpr, FOLDED: tl.constexpr,
                  EVEN_K: tl.constexpr, PTX: tl.constexpr, BLOCK_M: tl.constexpr,
                  BLOCK_N: tl.constexpr, SPLIT: tl.constexpr):  # fmt: skip
    """Compute one tile of ``out`` [M, N], or a part of its sum, for rows of the weight to ``n``.

    TAKEN: words of a row that a turn of the loop takes, which divide PLANE. PER_GROUP: planes that
    share a scale; 0: all. RUN: planes of a block that do, so that their products are one sum.
    """
    tile, part = tl.program_id(0), 0
    first, last = 0, steps * (PLANE // TAKEN)
    if SPLIT:
        tile, part = tile // parts, tile % parts
        first, last = part * last // parts, (part + 1) * last // parts
    tall = tl.cdiv(m, BLOCK_M)
    top, left = tile % tall * BLOCK_M, first_row + tile // tall * BLOCK_N
    rows, columns = top + tl.arange(0, BLOCK_M), left + tl.arange(0, BLOCK_N)
    word = tl.arange(0, TAKEN)[None, :]
    known = tl.minimum(columns, n - 1)
    words += (known // ROWS).to(tl.int64)[:, None] * steps * (ROWS * PLANE)
    words += known[:, None] % ROWS * PLANE + word
    # Rows that are not there are not read: all programs would ask for the same few lines at once.
    has_row = (rows < m)[:, None]
    x += rows.to(tl.int64)[:, None] * stride_x + word
    total = packed_sum(x, has_row, words, scale, zero, known, word, k, groups, stride_scale, first,
                       last, BITS, PLANE, TAKEN, PER_GROUP, RUN, MIDDLE, FOLDED, EVEN_K, PTX,
                       BLOCK_M, BLOCK_N)  # fmt: skip
    is_last = True
    if SPLIT:
        total, is_last = sum_of_parts(total, partial, counters, tile, part, parts, BLOCK_N,
                                      BLOCK_M)  # fmt: skip
    if is_last:
        store_result(total, out, scale, bias, columns, rows, has_row, n, stride_out,
                     PER_GROUP == 0 and not FOLDED)  # fmt: skip


@triton.jit(do_not_specialize=["first_row", "n", "steps", "groups", "stride_scale"])
def unpack_rows(words, scale, zero, out, first_row, n, k, steps, groups, stride_scale,
                BITS: tl.constexpr, PLANE: tl.constexpr, PER_GROUP: tl.constexpr,
                MIDDLE: tl.constexpr, BLOCK_N: tl.constexpr):  # fmt: skip
    """Write one block of rows ``first_row`` to ``n`` of the weight to ``out`` [rows, K]."""
    PLANES: tl.constexpr = 16 // BITS
    step = tl.program_id(1)
    rows = first_row + tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    word = tl.arange(0, PLANE)[None, :]
    known = tl.minimum(rows, n - 1)
    words += (known // ROWS).to(tl.int64)[:, None] * steps * (ROWS * PLANE)
    taken = tl.load(words + step * (ROWS * PLANE) + known[:, None] % ROWS * PLANE + word)
    at = out + (rows - first_row).to(tl.int64)[:, None] * k + word
    for place in tl.static_range(PLANES):
        plane = step * PLANES + place
        where = place_of(known, plane, groups, stride_scale, PER_GROUP)
        added = added_of(zero, where, MIDDLE, BITS, False, tl.float32)
        values = whole_codes(taken, place, BITS) + added[:, None]
        values *= tl.load(scale + where).to(tl.float32)[:, None]
        column = plane * PLANE
        inside = (rows < n)[:, None] & (word < k - column)
        tl.store(at + column, values.to(out.dtype.element_ty), mask=inside)
