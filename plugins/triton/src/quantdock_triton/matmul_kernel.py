"""The product ``x @ weight.T`` of codes, and all that scales do to it, as one Triton kernel.

A program computes one tile of the result, or one part of its sum over K: the last of the parts to
arrive adds them up, in a fixed order, so the result does not depend on who was last. With SWAP the
weight is the left operand, so that few rows of x waste no tensor core. Scales that are constant
along K multiply the finished sum; others multiply each step's product before it is added in f32.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def place_of(tile, m, n, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, GROUP_M: tl.constexpr):
    """Return the first row and column of a tile; GROUP_M rows of tiles share weights in cache."""
    grid_m, grid_n = tl.cdiv(m, BLOCK_M), tl.cdiv(n, BLOCK_N)
    band = tile // (GROUP_M * grid_n) * GROUP_M
    height = tl.minimum(grid_m - band, GROUP_M)
    within = tile % (GROUP_M * grid_n)
    return (band + within % height) * BLOCK_M, within // height * BLOCK_N


@triton.jit
def widened(codes, dtype: tl.constexpr, KIND: tl.constexpr):
    """Return codes, given as bytes, in ``dtype``; those of e4m3 come out 2^8 times too small.

    An fp8 code is the upper part of a float16; e4m3 has another exponent offset. So no unit for
    fp8 is needed.
    """
    bits = codes.to(tl.int8, bitcast=True).to(tl.int16)
    if KIND == "int8":
        return bits.to(dtype)
    elif KIND == "e5m2":
        return (bits << 8).to(tl.float16, bitcast=True).to(dtype)
    else:
        return ((bits << 7) & -0x4001).to(tl.float16, bitcast=True).to(dtype)


@triton.jit
def multiply(x, weight, total, SWAP: tl.constexpr):
    """Return ``total`` plus x @ weight.T, or its transpose with SWAP."""
    if SWAP:
        total = tl.dot(weight, tl.trans(x), total, out_dtype=total.dtype)
    else:
        total = tl.dot(x, tl.trans(weight), total, out_dtype=total.dtype)
    return total


@triton.jit
def along_rows(values, SWAP: tl.constexpr):
    """Return values of rows of x so that they broadcast over a product."""
    return values[None, :] if SWAP else values[:, None]


@triton.jit
def along_columns(values, SWAP: tl.constexpr):
    """Return values of rows of the weight so that they broadcast over a product."""
    return values[:, None] if SWAP else values[None, :]


@triton.jit
def sum_of_parts(total, partial, counters, tile, part, parts, HEIGHT: tl.constexpr,
                 WIDTH: tl.constexpr):  # fmt: skip
    """Store this part; return whether it was the last of its tile, which then has the whole sum."""
    at = tl.arange(0, HEIGHT)[:, None] * WIDTH + tl.arange(0, WIDTH)[None, :]
    first = partial + tile.to(tl.int64) * parts * (HEIGHT * WIDTH)
    tl.store(first + part * (HEIGHT * WIDTH) + at, total)
    tl.debug_barrier()
    is_last = tl.atomic_add(counters + tile, 1, sem="acq_rel", scope="gpu") == parts - 1
    if is_last:
        tl.store(counters + tile, 0)
        total = tl.zeros([HEIGHT, WIDTH], dtype=total.dtype)
        for number in range(parts):
            place = first + number * (HEIGHT * WIDTH) + at
            total += tl.load(place, cache_modifier=".cg")
    return total, is_last


@triton.jit
def finish(total, out, a_scale, b_scale, bias, rows, places, has_row, left, n, stride_out,
           a_scale_row, b_scale_row, A_STEPS: tl.constexpr, B_STEPS: tl.constexpr,
           B_ROWS: tl.constexpr, UNIT: tl.constexpr, HAS_BIAS: tl.constexpr,
           BLOCK_N: tl.constexpr, SWAP: tl.constexpr):  # fmt: skip
    """Scale the sum by what is constant along K, add the bias, round once and store.

    rows: of x, whose scales they have; places: rows of ``out``; both int64.
    """
    result = (tl.trans(total) if SWAP else total).to(tl.float32)
    columns = left + tl.arange(0, BLOCK_N)
    has_column = columns < n
    if A_STEPS == 0 and a_scale is not None:
        result *= tl.load(a_scale + rows * a_scale_row, mask=has_row, other=0.0)[:, None]
    if B_STEPS == 0:
        at = b_scale + columns // B_ROWS * b_scale_row
        result *= tl.load(at, mask=has_column, other=0.0)[None, :]
    if UNIT != 1.0:
        result *= UNIT
    if HAS_BIAS:
        result += tl.load(bias + columns, mask=has_column, other=0.0).to(tl.float32)[None, :]
    at = out + places[:, None] * stride_out + columns[None, :]
    tl.store(at, result.to(out.dtype.element_ty), mask=has_row[:, None] & has_column[None, :])


@triton.jit
def step_product(a, b, a_at, b_at, has_row, top, left, start, k, total, SWAP: tl.constexpr,
                 TMA: tl.constexpr, EVEN_K: tl.constexpr, WIDEN: tl.constexpr,
                 BLOCK_K: tl.constexpr):  # fmt: skip
    """Return ``total`` plus the product of BLOCK_K columns from ``start``.

    has_row: rows of x that are there, [BLOCK_M, 1]; None: those that are not repeat the last.
    """
    if TMA:
        x, weight = a.load([top, start]), b.load([left, start])
    elif EVEN_K:
        weight = tl.load(b_at + start)
        if has_row is None:
            x = tl.load(a_at + start)
        else:
            x = tl.load(a_at + start, mask=has_row, other=0.0)
    else:
        inside = (tl.arange(0, BLOCK_K) < k - start)[None, :]
        known = inside if has_row is None else inside & has_row
        x = tl.load(a_at + start, mask=known, other=0.0)
        weight = tl.load(b_at + start, mask=inside, other=0.0)
    if WIDEN != "":
        weight = widened(weight, x.dtype, WIDEN)
    return multiply(x, weight, total, SWAP)


@triton.jit
def scaled_sum(a, b, a_at, b_at, a_scale, b_scale, rows, has_row, top, b_top, left, n, k, first,
               last, a_scale_row, a_scale_group, b_scale_row, b_scale_group, A_STEPS: tl.constexpr,
               B_STEPS: tl.constexpr, B_ROWS: tl.constexpr, SWAP: tl.constexpr, TMA: tl.constexpr,
               EVEN_K: tl.constexpr, WIDEN: tl.constexpr, INTEGER: tl.constexpr,
               BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr):  # fmt: skip
    """Return the sum over steps of products that have scales of their own.

    b_top: the row of b that is row ``left`` of the weight.
    """
    total = tl.zeros([BLOCK_N, BLOCK_M] if SWAP else [BLOCK_M, BLOCK_N], dtype=tl.float32)
    zero = tl.zeros([BLOCK_N, BLOCK_M] if SWAP else [BLOCK_M, BLOCK_N],
                    dtype=tl.int32 if INTEGER else tl.float32)  # fmt: skip
    # Scales are read a step ahead, so that the product does not wait for them.
    if A_STEPS > 0:
        a_place = a_scale + rows * a_scale_row
        a_next = tl.load(a_place + first // A_STEPS * a_scale_group)
    if B_STEPS > 0:
        if B_ROWS % BLOCK_N == 0:
            b_place = b_scale + left // B_ROWS * b_scale_row
        else:
            columns = tl.minimum(left + tl.arange(0, BLOCK_N), n - 1)
            b_place = b_scale + columns // B_ROWS * b_scale_row
        b_next = tl.load(b_place + first // B_STEPS * b_scale_group)
    for step in range(first, last):
        ahead = tl.minimum(step + 1, last - 1)
        product = step_product(a, b, a_at, b_at, has_row, top, b_top, step * BLOCK_K, k, zero, SWAP,
                               TMA, EVEN_K, WIDEN, BLOCK_K).to(tl.float32)  # fmt: skip
        if A_STEPS > 0:
            factor = along_rows(a_next, SWAP)
            a_next = tl.load(a_place + ahead // A_STEPS * a_scale_group)
            if B_STEPS > 0 and B_ROWS % BLOCK_N == 0:
                factor *= b_next
            product *= factor
        if B_STEPS > 0:
            if B_ROWS % BLOCK_N:
                product *= along_columns(b_next, SWAP)
            elif A_STEPS == 0:
                product *= b_next
            b_next = tl.load(b_place + ahead // B_STEPS * b_scale_group)
        total += product
    return total


@triton.jit
def sum_of_steps(a, b, a_at, b_at, a_scale, b_scale, rows, has_row, top, b_top, left, n, k, first,
                 last, a_scale_row, a_scale_group, b_scale_row, b_scale_group,
                 A_STEPS: tl.constexpr, B_STEPS: tl.constexpr, B_ROWS: tl.constexpr,
                 SWAP: tl.constexpr, TMA: tl.constexpr, EVEN_K: tl.constexpr, WIDEN: tl.constexpr,
                 INTEGER: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
                 BLOCK_K: tl.constexpr):  # fmt: skip
    """Return the sum over steps, scaled by what changes along K."""
    if A_STEPS + B_STEPS > 0:
        return scaled_sum(a, b, a_at, b_at, a_scale, b_scale, rows, has_row, top, b_top, left, n, k,
                          first, last, a_scale_row, a_scale_group, b_scale_row, b_scale_group,
                          A_STEPS, B_STEPS, B_ROWS, SWAP, TMA, EVEN_K, WIDEN, INTEGER, BLOCK_M,
                          BLOCK_N, BLOCK_K)  # fmt: skip
    else:
        total = tl.zeros([BLOCK_N, BLOCK_M] if SWAP else [BLOCK_M, BLOCK_N],
                         dtype=tl.int32 if INTEGER else tl.float32)  # fmt: skip
        for step in range(first, last):
            total = step_product(a, b, a_at, b_at, has_row, top, b_top, step * BLOCK_K, k, total,
                                 SWAP, TMA, EVEN_K, WIDEN, BLOCK_K)  # fmt: skip
        return total


@triton.jit(do_not_specialize=["m", "a_scale_group", "parts"])
def scaled_matmul(a, b, out, a_scale, b_scale, bias, partial, counters, m, n, k, stride_a, stride_b,
                  stride_out, a_scale_row, a_scale_group, b_scale_row, b_scale_group, parts,
                  A_STEPS: tl.constexpr, B_STEPS: tl.constexpr, B_ROWS: tl.constexpr,
                  WIDEN: tl.constexpr, UNIT: tl.constexpr, INTEGER: tl.constexpr,
                  HAS_BIAS: tl.constexpr, EVEN_K: tl.constexpr, BLOCK_M: tl.constexpr,
                  BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
                  SPLIT: tl.constexpr, SWAP: tl.constexpr, TMA: tl.constexpr):  # fmt: skip
    """Compute one tile of ``out`` [M, N], or a part of its sum; a and b are rows of K codes.

    A_STEPS, B_STEPS: steps of BLOCK_K that share a column of the scales; 0: there is one column.
    B_ROWS: rows of the weight that share a row of its scales. INTEGER: codes are int8.
    """
    tile, part = tl.program_id(0), 0
    steps = tl.cdiv(k, BLOCK_K)
    first, last = 0, steps
    if SPLIT:
        tile, part = tile // parts, tile % parts
        first, last = part * steps // parts, (part + 1) * steps // parts
    top, left = place_of(tile, m, n, BLOCK_M, BLOCK_N, GROUP_M)
    HEIGHT: tl.constexpr = BLOCK_N if SWAP else BLOCK_M
    WIDTH: tl.constexpr = BLOCK_M if SWAP else BLOCK_N
    a_at, b_at = a, b
    has_row = top + tl.arange(0, BLOCK_M) < m
    rows = tl.minimum(top + tl.arange(0, BLOCK_M), m - 1).to(tl.int64)
    if not TMA:
        columns = tl.minimum(left + tl.arange(0, BLOCK_N), n - 1).to(tl.int64)[:, None]
        column = tl.arange(0, BLOCK_K)[None, :]
        a_at, b_at = a + rows[:, None] * stride_a + column, b + columns * stride_b + column
    total = sum_of_steps(a, b, a_at, b_at, a_scale, b_scale, rows, None, top, left, left, n, k,
                         first, last, a_scale_row, a_scale_group, b_scale_row, b_scale_group,
                         A_STEPS, B_STEPS, B_ROWS, SWAP, TMA, EVEN_K, WIDEN, INTEGER, BLOCK_M,
                         BLOCK_N, BLOCK_K)  # fmt: skip
    is_last = True
    if SPLIT:
        total, is_last = sum_of_parts(total, partial, counters, tile, part, parts, HEIGHT, WIDTH)
    if is_last:
        finish(total, out, a_scale, b_scale, bias, rows, rows, has_row, left, n, stride_out,
               a_scale_row, b_scale_row, A_STEPS, B_STEPS, B_ROWS, UNIT, HAS_BIAS, BLOCK_N,
               SWAP)  # fmt: skip
