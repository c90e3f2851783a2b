"""Products with floats of 4 and 6 bits (small_float_layout.py), widened in registers, in Triton.

A code becomes the f32 that has its bits, times a power of two. With its scale of few bits that is
exact in bfloat16, and so is a float16 of x in tf32 (f32 is multiplied as it is): products lose
nothing, sums are f32. A second scale multiplies the sum of its row.
"""

from __future__ import annotations

import triton
import triton.language as tl

from quantdock_triton.matmul_kernel import sum_of_parts

RUN = tl.constexpr(16)
LEAST = tl.constexpr(1 << 22)  # bits of 2^-127, the smallest e8m0, as f32


@triton.jit
def scales_of(scale, rows, run, groups, stride, GROUP: tl.constexpr, E8M0: tl.constexpr):
    """Return the scales of runs of 16 columns, f32; what fills up the edge takes the last."""
    group = tl.minimum(run // GROUP, groups - 1)
    stored = tl.load(scale + rows.to(tl.int64)[:, None] * stride + group[None, :]).to(tl.int32)
    if E8M0:
        bits = tl.where(stored == 0, LEAST, stored << 23)
        return bits.to(tl.float32, bitcast=True)
    else:
        bits = ((stored & 0x7F) << 20) | ((stored & 0x80) << 24)
        return bits.to(tl.float32, bitcast=True) * 2.0**120


@triton.jit
def widened(taken, scales, HALF: tl.constexpr, BITS: tl.constexpr, SHIFT: tl.constexpr,
            UNIT: tl.constexpr):  # fmt: skip
    """Return the real numbers, f32, of one half of bytes [N, B] whose scales are [N, B / 16]."""
    code = taken >> (4 * HALF)
    magnitude = (code & ((1 << (BITS - 1)) - 1)) << SHIFT
    bits = magnitude | ((code & (1 << (BITS - 1))) << (32 - BITS))
    values = bits.to(tl.float32, bitcast=True) * UNIT
    runs = tl.reshape(values, [taken.shape[0], taken.shape[1] // RUN, RUN])
    return tl.reshape(runs * scales[:, :, None], [taken.shape[0], taken.shape[1]])


@triton.jit(do_not_specialize=["m", "n", "groups", "stride_scale", "stride_out", "parts"])
def small_float_matmul(x, codes, scale, second, bias, out, partial, counters, m, n, k, groups,
                       stride_x, row_bytes, stride_scale, stride_out, parts, BITS: tl.constexpr,
                       PER_BYTE: tl.constexpr, SHIFT: tl.constexpr, UNIT: tl.constexpr,
                       GROUP: tl.constexpr, E8M0: tl.constexpr, BYTES: tl.constexpr,
                       BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
                       SPLIT: tl.constexpr):  # fmt: skip
    """Compute one tile of ``out`` [M, N], or a part of its sum.

    BYTES: of a row that a turn takes. GROUP: runs of 16 columns that share a scale. SHIFT, UNIT:
    what makes a code an f32.
    """
    tile, part = tl.program_id(0), 0
    first, last = 0, tl.cdiv(row_bytes, BYTES)
    if SPLIT:
        tile, part = tile // parts, tile % parts
        first, last = part * last // parts, (part + 1) * last // parts
    tall = tl.cdiv(m, BLOCK_M)
    rows = tile % tall * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = tile // tall * BLOCK_N + tl.arange(0, BLOCK_N)
    known, has_row = tl.minimum(columns, n - 1), (rows < m)[:, None]
    x += rows.to(tl.int64)[:, None] * stride_x
    codes += known.to(tl.int64)[:, None] * row_bytes
    within = tl.arange(0, BYTES)
    PRECISION: tl.constexpr = "ieee" if x.dtype.element_ty == tl.float32 else "tf32"
    total = tl.zeros([BLOCK_N, BLOCK_M], dtype=tl.float32)
    for turn in range(first, last):
        byte = turn * BYTES + within
        taken = tl.load(codes + byte[None, :], mask=(byte < row_bytes)[None, :], other=0)
        taken = taken.to(tl.int32)
        for half in tl.static_range(PER_BYTE):
            run = (turn * (BYTES // RUN) + tl.arange(0, BYTES // RUN)) * PER_BYTE + half
            scales = scales_of(scale, known, run, groups, stride_scale, GROUP, E8M0)
            weight = widened(taken, scales, half, BITS, SHIFT, UNIT)
            column = ((byte // RUN * PER_BYTE + half) * RUN + byte % RUN)[None, :]
            given = tl.load(x + column, mask=has_row & (column < k), other=0.0)
            if x.dtype.element_ty == tl.bfloat16:
                total = tl.dot(weight.to(tl.bfloat16), tl.trans(given), total)
            else:
                given = tl.trans(given.to(tl.float32))
                total = tl.dot(weight, given, total, input_precision=PRECISION)
    is_last = True
    if SPLIT:
        total, is_last = sum_of_parts(total, partial, counters, tile, part, parts, BLOCK_N,
                                      BLOCK_M)  # fmt: skip
    if is_last:
        has_column = columns < n
        if second is not None:
            total *= tl.load(second + known)[:, None]
        if bias is not None:
            total += tl.load(bias + columns, mask=has_column, other=0.0).to(tl.float32)[:, None]
        at = out + rows.to(tl.int64)[:, None] * stride_out + columns[None, :]
        result = tl.trans(total).to(out.dtype.element_ty)
        tl.store(at, result, mask=has_row & has_column[None, :])


@triton.jit(do_not_specialize=["first_row", "n", "groups", "stride_scale"])
def widen_rows(codes, scale, second, out, first_row, n, k, groups, row_bytes, stride_scale,
               BITS: tl.constexpr, PER_BYTE: tl.constexpr, SHIFT: tl.constexpr,
               UNIT: tl.constexpr, GROUP: tl.constexpr, E8M0: tl.constexpr, BYTES: tl.constexpr,
               BLOCK_N: tl.constexpr):  # fmt: skip
    """Write BLOCK_N rows of the real weight, from ``first_row``, to ``out`` [rows, K]."""
    rows = first_row + tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    known = tl.minimum(rows, n - 1)
    byte = tl.program_id(1) * BYTES + tl.arange(0, BYTES)
    codes += known.to(tl.int64)[:, None] * row_bytes
    taken = tl.load(codes + byte[None, :], mask=(byte < row_bytes)[None, :], other=0).to(tl.int32)
    at = out + (rows - first_row).to(tl.int64)[:, None] * k
    for half in tl.static_range(PER_BYTE):
        run = (tl.program_id(1) * (BYTES // RUN) + tl.arange(0, BYTES // RUN)) * PER_BYTE + half
        scales = scales_of(scale, known, run, groups, stride_scale, GROUP, E8M0)
        if second is not None:
            scales *= tl.load(second + known)[:, None]
        values = widened(taken, scales, half, BITS, SHIFT, UNIT)
        column = ((byte // RUN * PER_BYTE + half) * RUN + byte % RUN)[None, :]
        inside = (rows < n)[:, None] & (column < k)
        tl.store(at + column, values.to(out.dtype.element_ty), mask=inside)
