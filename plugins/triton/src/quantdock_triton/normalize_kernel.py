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
    encode,
    larger,
    scale_of,
    store_scales,
    times,
    wide,
    wide_again,
)
from quantdock_triton.quantize_kernel import encode_row, scale_of_row


@triton.jit
def load_sum(x, residual, total, k, WIDTH: tl.constexpr, PIECES: tl.constexpr):
    """Return a row of x in pieces; where there is a residual, of the sum, which is stored too."""
    pieces = ()
    for i in tl.static_range(PIECES):
        columns = i * WIDTH + tl.arange(0, WIDTH)
        values = tl.load(x + columns, mask=columns < k, other=0.0)
        if residual is not None:
            other = tl.load(residual + columns, mask=columns < k, other=0.0)
            values = (values.to(tl.float32) + other.to(tl.float32)).to(values.dtype)
        pieces += (values,)
    if residual is not None:
        for i in tl.static_range(PIECES):
            columns = i * WIDTH + tl.arange(0, WIDTH)
            tl.store(total + columns, pieces[i], mask=columns < k)
    return pieces


@triton.jit
def normed(pieces, weight, eps, k, WIDTH: tl.constexpr, PTX: tl.constexpr):
    """Return a row over its root mean square, then times weight, in pieces."""
    squares = tl.zeros([WIDTH], dtype=tl.float32)
    for i in tl.static_range(len(pieces)):
        values = wide(pieces[i], PTX)
        squares = tl.fma(values, values, squares)
    inverse = tl.rsqrt(tl.sum(squares, axis=0) / k + eps)
    results = ()
    for i in tl.static_range(len(pieces)):
        columns = i * WIDTH + tl.arange(0, WIDTH)
        factors = tl.load(weight + columns, mask=columns < k, other=0.0)
        values = wide_again(pieces[i], PTX) * inverse
        results += (times(values, factors, pieces[i].dtype, PTX),)
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
        found = encode(values, scale[:, None], pieces[i].dtype, LARGEST < NEAR_ENOUGH, LOWEST,
                       LARGEST, PTX, codes.dtype.element_ty)  # fmt: skip
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
    CARRY: tl.constexpr,
):  # fmt: skip
    """Quantize the norm of one row: in groups of SIZE columns, or with one scale.

    NUM: static scales, of which the largest counts; 0: the scale is computed. Where codes have x's
    dtype, the norm itself is stored.
    """
    row = tl.program_id(0).to(tl.int64)
    if residual is not None:
        residual += row * stride_residual
        total += row * stride_total
    pieces = load_sum(x + row * stride_x, residual, total, k, WIDTH, PIECES)
    pieces = normed(pieces, weight, eps, k, WIDTH, PTX)
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
