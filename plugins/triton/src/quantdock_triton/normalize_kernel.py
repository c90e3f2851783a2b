"""Root mean square norms in Triton whose results are codes, a row a program.

Values are rounded to x's dtype after each step, as models do it one after the other: the sum with
the residual, the normed values, their product with the weight.
"""

from __future__ import annotations

import triton
import triton.language as tl

from quantdock_triton.encode_kernel import (
    NEAR_ENOUGH,
    SMALLEST_SCALE,
    encode_tile,
    larger,
    scale_of,
    store_scales,
    times,
    wide,
    wide_again,
)
from quantdock_triton.quantize_kernel import encode_row, scale_of_row, wait_for_kernel_before


@triton.jit
def load_row(row, k, WIDTH: tl.constexpr, PIECES: tl.constexpr, LEAVES: tl.constexpr):
    """Return a row in pieces; LEAVES: which lines the cache may give up sooner or later."""
    pieces = ()
    for i in tl.static_range(PIECES):
        columns = i * WIDTH + tl.arange(0, WIDTH)
        pieces += (tl.load(row + columns, mask=columns < k, other=0.0, eviction_policy=LEAVES),)
    return pieces


@triton.jit
def add_row(pieces, residual, total, k, WIDTH: tl.constexpr):
    """Return the sum of a row in pieces and one in memory; it is stored too, after all reads."""
    others = load_row(residual, k, WIDTH, len(pieces), "")
    sums = ()
    for i in tl.static_range(len(pieces)):
        value = pieces[i].to(tl.float32) + others[i].to(tl.float32)
        sums += (value.to(pieces[i].dtype),)
    for i in tl.static_range(len(pieces)):
        columns = i * WIDTH + tl.arange(0, WIDTH)
        tl.store(total + columns, sums[i], mask=columns < k)
    return sums


@triton.jit
def normed(pieces, factors, eps, k, WIDTH: tl.constexpr, PTX: tl.constexpr):
    """Return a row over its root mean square, times factors, in pieces."""
    squares = tl.zeros([WIDTH], dtype=tl.float32)
    for i in tl.static_range(len(pieces)):
        values = wide(pieces[i], PTX)
        squares = tl.fma(values, values, squares)
    inverse = tl.rsqrt(tl.sum(squares, axis=0) / k + eps)
    results = ()
    for i in tl.static_range(len(pieces)):
        values = wide_again(pieces[i], PTX) * inverse
        results += (times(values, factors[i], pieces[i].dtype, PTX),)
    return results


@triton.jit
def encode_groups(
    pieces, codes, scales, k, groups, scale_group, WIDTH: tl.constexpr, SIZE: tl.constexpr,
    LOWEST: tl.constexpr, LARGEST: tl.constexpr, PTX: tl.constexpr, TOP: tl.constexpr,
    CARRY: tl.constexpr,
):  # fmt: skip
    """Store the codes and scales of a row in groups of SIZE columns, which divides WIDTH."""
    GROUPS: tl.constexpr = WIDTH // SIZE
    for i in tl.static_range(len(pieces)):
        values = tl.reshape(wide(pieces[i], PTX), (GROUPS, SIZE))
        scale = scale_of(tl.reduce(tl.abs(values), 1, larger), TOP, CARRY)
        found = encode_tile(values, scale[:, None], pieces[i].dtype, CARRY, LOWEST, LARGEST, PTX,
                            codes.dtype.element_ty)  # fmt: skip
        columns = i * WIDTH + tl.arange(0, WIDTH)
        tl.store(codes + columns, tl.reshape(found, (WIDTH,)), mask=columns < k)
        group = i * GROUPS + tl.arange(0, GROUPS)
        store_scales(scales + group.to(tl.int64) * scale_group, scale, group < groups, PTX)


@triton.jit
def normalize_rows(
    x, residual, total, weight, codes, scales, input_scale, eps, groups, stride_x,
    stride_residual, stride_total, stride_codes, scale_group, k: tl.constexpr, WIDTH: tl.constexpr,
    PIECES: tl.constexpr, SIZE: tl.constexpr, NUM: tl.constexpr, NUM_WIDTH: tl.constexpr,
    LOWEST: tl.constexpr, LARGEST: tl.constexpr, PTX: tl.constexpr, TOP: tl.constexpr,
    CARRY: tl.constexpr, FIRST: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Quantize the norm of one row: in groups of SIZE columns, or with one scale.

    NUM: static scales, of which the largest counts; 0: the scale is computed. Where codes have x's
    dtype, the norm itself is stored. FIRST: x leaves the cache first, so that codes stay in it.
    """
    if EARLY:
        wait_for_kernel_before()
    row = tl.program_id(0).to(tl.int64)
    pieces = load_row(x + row * stride_x, k, WIDTH, PIECES, "evict_first" if FIRST else "")
    if residual is not None:
        residual += row * stride_residual
        pieces = add_row(pieces, residual, total + row * stride_total, k, WIDTH)
    factors = load_row(weight, k, WIDTH, PIECES, "evict_last" if FIRST else "")
    pieces = normed(pieces, factors, eps, k, WIDTH, PTX)
    codes += row * stride_codes
    if codes.dtype.element_ty == x.dtype.element_ty:
        for i in tl.static_range(PIECES):
            columns = i * WIDTH + tl.arange(0, WIDTH)
            tl.store(codes + columns, pieces[i], mask=columns < k)
    elif NUM > 0:
        index = tl.arange(0, NUM_WIDTH)
        scale = tl.max(tl.load(input_scale + index, mask=index < NUM, other=0.0), axis=0)
        if row == 0:
            tl.store(scales, scale)
        scale = tl.maximum(scale, SMALLEST_SCALE)
        encode_row(pieces, codes, scale, k, WIDTH, True, LOWEST, LARGEST, PTX)
    elif SIZE == 0:
        scale = scale_of_row(pieces, WIDTH, False, PTX, TOP, CARRY)
        tl.store(scales + row, scale)
        encode_row(pieces, codes, scale, k, WIDTH, LARGEST < NEAR_ENOUGH, LOWEST, LARGEST, PTX)
    else:
        encode_groups(pieces, codes, scales + row, k, groups, scale_group, WIDTH, SIZE, LOWEST,
                      LARGEST, PTX, TOP, CARRY)  # fmt: skip
