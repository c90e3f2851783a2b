"""Products with floats of 4 and 6 bits (small_float_layout.py), widened in registers, in Triton.

A code becomes the float that has its bits, times a power of two, then times its scale. With scales
of few bits that is exact in bfloat16, and so is a float16 of x in tf32 (f32 is multiplied as it
is): products lose nothing, sums are f32. A second scale multiplies the sum of its row.

In bfloat16 the power of two is part of the scale, but for 2^-62 of it, which multiply the sum: so
one product makes a code a number. Scales from 2^-68 to 2^65 are exact that way; smaller ones lose
bits, and larger ones are refused where weights are packed (small_float_layout.py).
"""

from __future__ import annotations

import triton
import triton.language as tl

from quantdock_triton.matmul_kernel import sum_of_parts
from quantdock_triton.small_float_layout import PLACES as SPREAD

RUNS = tl.constexpr(4)
LEAST = tl.constexpr(1 << 22)  # bits of 2^-127, the smallest e8m0, as f32
PAIR = tl.constexpr(1 << 7 | 1 << 23)  # what makes an exponent two of bfloat16, side by side
KEPT = 62  # the power of two of scales in bfloat16
KEPT_BITS = tl.constexpr(KEPT << 7 | KEPT << 23)
LESS = tl.constexpr(2.0**-KEPT)


def _shifted(bits: int) -> str:
    """Return PTX that moves a word's bits up, or down where ``bits`` is negative."""
    return f"shl.b32 moved, $1, {bits};" if bits >= 0 else f"shr.b32 moved, $1, {-bits};"


def _pieces_of(bits: int, fraction_bits: int) -> tuple[dict[int, int], ...]:
    """Return, for each place in a word, which bits of bfloat16 a shift of the word brings."""
    low, sign = 7 - fraction_bits, bits - 1  # of the magnitude, in bfloat16; of the code
    places = SPREAD if bits == 4 else [[((1 << bits) - 1, place)] for place in (0, 8)]
    found: tuple[dict[int, int], ...] = ()
    for pieces in places:
        taken: dict[int, int] = {}
        for mask, left in pieces:
            for bit in (b for b in range(bits) if mask >> b & 1):
                place = 15 if bit == sign else low + bit
                taken[place - bit - left] = taken.get(place - bit - left, 0) | 1 << place
        found += (taken,)
    return found


def placed(bits: int, fraction_bits: int) -> tuple[str, ...]:
    """Return PTX, for each place in two words ($1), that puts the codes where bfloat16 has them.

    It sets the register ``codes``, and takes ``moved``.
    """
    return tuple(
        " mov.b32 codes, 0;"
        + "".join(
            f" {_shifted(shift)} lop3.b32 codes, moved, {mask * 0x00010001:#010x}, codes, 0xea;"
            for shift, mask in taken.items()
        )
        for taken in _pieces_of(bits, fraction_bits)
    )


def _two_codes(bits: int, fraction_bits: int) -> tuple[str, ...]:
    """Return PTX, for each place in a word, that makes bfloat16 of the codes of two words.

    Both have one scale, which the second operand holds twice.
    """
    return tuple(
        "{ .reg .b32 moved, codes, zero; mov.b32 zero, 0x80008000;"
        f"{text} fma.rn.bf16x2 $0, codes, $2, zero; }}"
        for text in placed(bits, fraction_bits)
    )


def _times(*powers: int) -> str:
    """Return PTX that multiplies two numbers of bfloat16 by powers of two."""
    steps = "".join(
        f" mov.b32 unit, {(power + 127) * 0x00800080:#010x}; fma.rn.bf16x2 $0, $0, unit, zero;"
        for power in powers
    )
    return "{ .reg .b32 unit, zero; mov.b32 zero, 0x80008000; mov.b32 $0, $1;" + steps + " }"


E2M1 = tl.constexpr(_two_codes(4, 1))
E2M3 = tl.constexpr(_two_codes(6, 3))
E3M2 = tl.constexpr(_two_codes(6, 2))
OF_E4M3 = tl.constexpr(_times(120, KEPT))


@triton.jit
def along_runs(scales, RUN: tl.constexpr):
    """Return [N, 4 RUN] of the scales [N, 4] of runs."""
    each = tl.broadcast_to(scales[:, :, None], [scales.shape[0], RUNS, RUN])
    return tl.reshape(each, [scales.shape[0], RUNS * RUN])


@triton.jit
def scales_of(stored, E8M0: tl.constexpr):
    """Return scales as f32."""
    stored = stored.to(tl.int32)
    if E8M0:
        bits = tl.where(stored == 0, LEAST, stored << 23)
        return bits.to(tl.float32, bitcast=True)
    else:
        bits = ((stored & 0x7F) << 20) | ((stored & 0x80) << 24)
        return bits.to(tl.float32, bitcast=True) * 2.0**120


@triton.jit
def half_scales_of(stored, E8M0: tl.constexpr):
    """Return scales times 2^62 as bfloat16, each twice in 32 bits."""
    stored = stored.to(tl.int32)
    if E8M0:
        return stored * PAIR + KEPT_BITS
    else:
        bits = ((stored & 0x7F) * (PAIR >> 3)) | ((stored & 0x80) * (PAIR << 1))
        return tl.inline_asm_elementwise(OF_E4M3, "=r,r", [bits], dtype=tl.int32, is_pure=True,
                                         pack=1)  # fmt: skip


@triton.jit
def code_at(words, PLACE: tl.constexpr, BITS: tl.constexpr):
    """Return the codes at one place of words, in the lowest bits of 32; above them is anything."""
    words = words.to(tl.int32)
    if BITS > 4:
        return words >> (8 * PLACE)
    elif PLACE == 3:
        return (words >> 11 & 12) | (words >> 10 & 3)
    else:
        return (words >> (12 - 3 * PLACE) & 8) | (words >> (6 - 3 * PLACE) & 7)


@triton.jit
def widened(words, scales, PLACE: tl.constexpr, BITS: tl.constexpr, FRACTION: tl.constexpr,
            UNIT: tl.constexpr):  # fmt: skip
    """Return the real numbers, f32, at one place of words [N, 4 RUN]; scales are as many."""
    code = code_at(words, PLACE, BITS)
    magnitude = (code & ((1 << (BITS - 1)) - 1)) << (23 - FRACTION)
    bits = magnitude | ((code & (1 << (BITS - 1))) << (32 - BITS))
    return bits.to(tl.float32, bitcast=True) * UNIT * scales


@triton.jit
def half_widened(words, scales, PLACE: tl.constexpr, BITS: tl.constexpr, FRACTION: tl.constexpr):
    """Return bfloat16 at one place of words; scales are those of ``half_scales_of``."""
    CODES: tl.constexpr = E2M1 if BITS == 4 else (E2M3 if FRACTION == 3 else E3M2)
    return tl.inline_asm_elementwise(CODES[PLACE], "=r,r,r,r", [words, scales], dtype=tl.bfloat16,
                                     is_pure=True, pack=2)  # fmt: skip


@triton.jit
def product_at(total, taken, stored, given, PLACE: tl.constexpr, BITS: tl.constexpr,
               FRACTION: tl.constexpr, UNIT: tl.constexpr, RUN: tl.constexpr,
               E8M0: tl.constexpr, PTX: tl.constexpr):  # fmt: skip
    """Return ``total`` plus the product of x with the codes at one place of words."""
    dtype: tl.constexpr = given.dtype
    if dtype == tl.bfloat16 and PTX:
        scales = along_runs(half_scales_of(stored, E8M0), RUN)
        weight = half_widened(taken, scales, PLACE, BITS, FRACTION)
        return tl.dot(weight, tl.trans(given), total)
    scales = along_runs(scales_of(stored, E8M0), RUN)
    weight = widened(taken, scales, PLACE, BITS, FRACTION, UNIT)
    if dtype == tl.bfloat16:
        return tl.dot(weight.to(dtype), tl.trans(given), total)
    PRECISION: tl.constexpr = "ieee" if dtype == tl.float32 else "tf32"
    return tl.dot(weight, tl.trans(given.to(tl.float32)), total, input_precision=PRECISION)


@triton.jit
def finish(total, second, bias, out, rows, columns, has_row, n, stride_out):
    """Multiply the sum [N, M] by the second scales, add the bias, round once and store."""
    has_column = columns < n
    if second is not None:
        total *= tl.load(second + columns, mask=has_column, other=0.0)[:, None]
    if bias is not None:
        total += tl.load(bias + columns, mask=has_column, other=0.0).to(tl.float32)[:, None]
    at = out + rows.to(tl.int64)[:, None] * stride_out + columns[None, :]
    result = tl.trans(total).to(out.dtype.element_ty)
    tl.store(at, result, mask=has_row & has_column[None, :])


@triton.jit
def float_sum(x, has_row, words, scale, word, k, stride_words, first, last, BITS: tl.constexpr,
              PLACES: tl.constexpr, FRACTION: tl.constexpr, UNIT: tl.constexpr,
              RUN: tl.constexpr, E8M0: tl.constexpr, PTX: tl.constexpr, BLOCK_M: tl.constexpr,
              BLOCK_N: tl.constexpr):  # fmt: skip
    """Return the sum over some turns [BLOCK_N, BLOCK_M]; x, words and scale point to their rows."""
    column = word // RUN * (PLACES * RUN) + word % RUN
    x += column[None, :]
    total = tl.zeros([BLOCK_N, BLOCK_M], dtype=tl.float32)
    for turn in range(first, last):
        inside = (word < stride_words - turn * (RUNS * RUN))[None, :]
        taken = tl.load(words + turn * (RUNS * RUN), mask=inside, other=0)
        for place in tl.static_range(PLACES):
            start = turn * (RUNS * RUN * PLACES) + place * RUN
            given = tl.load(x + start, mask=has_row & (column < k - start)[None, :], other=0.0)
            stored = tl.load(scale + (turn * PLACES + place) * RUNS)
            total = product_at(total, taken, stored, given, place, BITS, FRACTION, UNIT, RUN, E8M0,
                               PTX)  # fmt: skip
    if x.dtype.element_ty == tl.bfloat16 and PTX:
        total *= UNIT * LESS
    return total


@triton.jit(do_not_specialize=["m", "n", "stride_out", "parts"])
def small_float_matmul(x, words, scale, second, bias, out, partial, counters, m, n, k, stride_x,
                       stride_words, stride_scale, stride_out, parts, BITS: tl.constexpr,
                       PLACES: tl.constexpr, FRACTION: tl.constexpr, UNIT: tl.constexpr,
                       RUN: tl.constexpr, E8M0: tl.constexpr, PTX: tl.constexpr,
                       BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
                       SPLIT: tl.constexpr):  # fmt: skip
    """Compute one tile of ``out`` [M, N], or a part of its sum, by turns of four runs of words.

    FRACTION: bits of a code's fraction. UNIT: what its bits, as f32, are multiplied with.
    """
    tile, part = tl.program_id(0), 0
    first, last = 0, tl.cdiv(stride_words, RUNS * RUN)
    if SPLIT:
        tile, part = tile // parts, tile % parts
        first, last = part * last // parts, (part + 1) * last // parts
    tall = tl.cdiv(m, BLOCK_M)
    rows = tile % tall * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = tile // tall * BLOCK_N + tl.arange(0, BLOCK_N)
    known, has_row = tl.minimum(columns, n - 1).to(tl.int64)[:, None], (rows < m)[:, None]
    word = tl.arange(0, RUNS * RUN)
    x += rows.to(tl.int64)[:, None] * stride_x
    words += known * stride_words + word[None, :]
    scale += known * stride_scale + tl.arange(0, RUNS)[None, :]
    total = float_sum(x, has_row, words, scale, word, k, stride_words, first, last, BITS, PLACES,
                      FRACTION, UNIT, RUN, E8M0, PTX, BLOCK_M, BLOCK_N)  # fmt: skip
    is_last = True
    if SPLIT:
        total, is_last = sum_of_parts(total, partial, counters, tile, part, parts, BLOCK_N,
                                      BLOCK_M)  # fmt: skip
    if is_last:
        finish(total, second, bias, out, rows, columns, has_row, n, stride_out)


@triton.jit(do_not_specialize=["first_row", "n"])
def widen_rows(words, scale, second, out, first_row, n, k, stride_words, stride_scale,
               BITS: tl.constexpr, PLACES: tl.constexpr, FRACTION: tl.constexpr,
               UNIT: tl.constexpr, RUN: tl.constexpr, E8M0: tl.constexpr,
               BLOCK_N: tl.constexpr):  # fmt: skip
    """Write one turn of BLOCK_N rows of the weight, from ``first_row``, to ``out`` [rows, K]."""
    turn = tl.program_id(1)
    rows = first_row + tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    known = tl.minimum(rows, n - 1).to(tl.int64)[:, None]
    word = tl.arange(0, RUNS * RUN)
    inside = (word < stride_words - turn * (RUNS * RUN))[None, :]
    taken = tl.load(words + known * stride_words + turn * (RUNS * RUN) + word[None, :],
                    mask=inside, other=0)  # fmt: skip
    column = turn * (RUNS * RUN * PLACES) + word // RUN * (PLACES * RUN) + word % RUN
    at = out + (rows - first_row).to(tl.int64)[:, None] * k + column[None, :]
    scale += known * stride_scale + turn * (PLACES * RUNS) + tl.arange(0, RUNS)[None, :]
    for place in tl.static_range(PLACES):
        scales = scales_of(tl.load(scale + place * RUNS), E8M0)
        if second is not None:
            scales *= tl.load(second + known)
        values = widened(taken, along_runs(scales, RUN), place, BITS, FRACTION, UNIT)
        mask = (rows < n)[:, None] & (column < k - place * RUN)[None, :]
        tl.store(at + place * RUN, values.to(out.dtype.element_ty), mask=mask)
