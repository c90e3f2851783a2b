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
    times,
    wide,
    wide_again,
)
from quantdock_triton.quantize_kernel import encode_row, scale_of_row, wait_for_kernel_before

AHEAD = tl.constexpr(2)  # pieces of a weight that is read late, before they are needed
STORE_F32 = tl.constexpr(
    "{.reg .pred p; setp.ne.s32 p, $3, 0; @p st.global.f32 [$1], $2; mov.u32 $0, 0;}"
)
# To lines that leave the cache last: until the rows below have filled them.
STORE_F32_LAST = tl.constexpr(
    """{
    .reg .pred p;
    .reg .b64 last;
    setp.ne.s32 p, $3, 0;
    createpolicy.fractional.L2::evict_last.b64 last, 1.0;
    @p st.global.L2::cache_hint.f32 [$1], $2, last;
    mov.u32 $0, 0;
    }"""
)


@triton.jit
def load_row(row, k, WIDTH: tl.constexpr, PIECES: tl.constexpr, LEAVES: tl.constexpr):
    """Return a row in pieces; LEAVES: which lines the cache may give up sooner or later."""
    pieces = ()
    for i in tl.static_range(PIECES):
        columns = i * WIDTH + tl.arange(0, WIDTH)
        pieces += (tl.load(row + columns, mask=columns < k, other=0.0, eviction_policy=LEAVES),)
    return pieces


@triton.jit
def store_row(row, pieces, k, WIDTH: tl.constexpr):
    """Store a row in pieces."""
    for i in tl.static_range(len(pieces)):
        columns = i * WIDTH + tl.arange(0, WIDTH)
        tl.store(row + columns, pieces[i], mask=columns < k)


@triton.jit
def add_row(pieces, residual, total, k, WIDTH: tl.constexpr):
    """Return the sum of a row in pieces and one in memory; it is stored too, after all reads."""
    others = load_row(residual, k, WIDTH, len(pieces), "")
    sums = ()
    for i in tl.static_range(len(pieces)):
        value = pieces[i].to(tl.float32) + others[i].to(tl.float32)
        sums += (value.to(pieces[i].dtype),)
    store_row(total, sums, k, WIDTH)
    return sums


@triton.jit
def zero_behind(value):
    """Return 0, which is known only when a number that is not negative is there."""
    zero = tl.inline_asm_elementwise("and.b32 $0, $1, 0x80000000;", "=r,r", [value],
                                     dtype=tl.int32, is_pure=True, pack=1)  # fmt: skip
    return tl.multiple_of(zero, 16)


@triton.jit
def inverse_of(pieces, eps, k, WIDTH: tl.constexpr, PTX: tl.constexpr):
    """Return one over the root mean square of a row in pieces."""
    squares = tl.zeros([WIDTH], dtype=tl.float32)
    for i in tl.static_range(len(pieces)):
        values = wide(pieces[i], PTX)
        squares = tl.fma(values, values, squares)
    return tl.rsqrt(tl.sum(squares, axis=0) / k + eps)


@triton.jit
def normed_piece(piece, inverse, factors, PTX: tl.constexpr):
    """Return a piece of a row over the row's root mean square, times factors."""
    return times(wide_again(piece, PTX) * inverse, factors, piece.dtype, PTX)


@triton.jit
def normed(
    pieces, weight, eps, k, WIDTH: tl.constexpr, LEAVES: tl.constexpr, LATE: tl.constexpr,
    PTX: tl.constexpr,
):  # fmt: skip
    """Return a row in pieces over its root mean square, times weight."""
    if not LATE:
        factors = load_row(weight, k, WIDTH, len(pieces), LEAVES)
    inverse = inverse_of(pieces, eps, k, WIDTH, PTX)
    if LATE:
        factors = load_row(weight + zero_behind(inverse), k, WIDTH, len(pieces), LEAVES)
    results = ()
    for i in tl.static_range(len(pieces)):
        results += (normed_piece(pieces[i], inverse, factors[i], PTX),)
    return results


@triton.jit
def encode_by_given(
    pieces, codes, scales, given, row, k, WIDTH: tl.constexpr, NUM: tl.constexpr,
    NUM_WIDTH: tl.constexpr, LOWEST: tl.constexpr, LARGEST: tl.constexpr, PTX: tl.constexpr,
):  # fmt: skip
    """Store the codes of a row by the largest of NUM scales, which the first row stores too."""
    index = tl.arange(0, NUM_WIDTH)
    scale = tl.max(tl.load(given + index, mask=index < NUM, other=0.0), axis=0)
    if row == 0:
        tl.store(scales, scale)
    scale = tl.maximum(scale, SMALLEST_SCALE)
    encode_row(pieces, codes, scale, k, WIDTH, True, LOWEST, LARGEST, PTX)


@triton.jit
def store_scales(places, scales, inside, LAST: tl.constexpr, PTX: tl.constexpr):
    """Store scales; every thread that has one does, so that none goes through shared memory."""
    if PTX:
        tl.inline_asm_elementwise(STORE_F32_LAST if LAST else STORE_F32, "=r,l,r,r",
                                  [places.to(tl.int64), scales, inside.to(tl.int32)],
                                  dtype=tl.int32, is_pure=False, pack=1)  # fmt: skip
    else:
        tl.store(places, scales, mask=inside)


@triton.jit
def encode_groups(
    pieces, codes, scales, k, groups, scale_group, WIDTH: tl.constexpr, SIZE: tl.constexpr,
    LOWEST: tl.constexpr, LARGEST: tl.constexpr, PTX: tl.constexpr, TOP: tl.constexpr,
    CARRY: tl.constexpr, LAST: tl.constexpr,
):  # fmt: skip
    """Store the codes and scales of a row in groups of SIZE columns, which divides WIDTH.

    LAST: the lines of scales leave the cache last.
    """
    GROUPS: tl.constexpr = WIDTH // SIZE
    for i in tl.static_range(len(pieces)):
        values = tl.reshape(wide(pieces[i], PTX), (GROUPS, SIZE))
        scale = scale_of(tl.reduce(tl.abs(values), 1, larger), TOP, CARRY)
        found = encode_tile(values, scale[:, None], pieces[i].dtype, CARRY, LOWEST, LARGEST, PTX,
                            codes.dtype.element_ty)  # fmt: skip
        columns = i * WIDTH + tl.arange(0, WIDTH)
        tl.store(codes + columns, tl.reshape(found, (WIDTH,)), mask=columns < k)
        group = i * GROUPS + tl.arange(0, GROUPS)
        places = scales + group.to(tl.int64) * scale_group
        store_scales(places, scale, group < groups, LAST, PTX)


@triton.jit
def encode_groups_at_once(
    pieces, inverse, weight, codes, scales, k, groups, scale_group, WIDTH: tl.constexpr,
    SIZE: tl.constexpr, LANES: tl.constexpr, LOWEST: tl.constexpr, LARGEST: tl.constexpr,
    PTX: tl.constexpr, TOP: tl.constexpr, CARRY: tl.constexpr, LAST: tl.constexpr,
    LATE: tl.constexpr, LEAVES: tl.constexpr,
):  # fmt: skip
    """Store what ``encode_groups`` does, all scales of the row in one write behind the codes.

    Each of the LANES threads that hold a group of a piece has its scale in another piece. LATE: the
    row is not normed yet, and its weight is read AHEAD pieces before it is needed.
    """
    GROUPS: tl.constexpr = WIDTH // SIZE
    VECTOR: tl.constexpr = SIZE // LANES
    column, lane = tl.arange(0, WIDTH), tl.arange(0, LANES)
    spread = tl.zeros([GROUPS, LANES, VECTOR], dtype=tl.float32)
    if LATE:
        factors = load_row(weight, k, WIDTH, AHEAD, LEAVES)
    for i in tl.static_range(len(pieces)):
        piece = pieces[i]
        if LATE:
            if i + AHEAD < len(pieces):
                after = (i + AHEAD) * WIDTH + column
                factors += (tl.load(weight + after, mask=after < k, other=0.0,
                                    eviction_policy=LEAVES),)  # fmt: skip
            piece = normed_piece(piece, inverse, factors[i], PTX)
        values = tl.reshape(wide(piece, PTX), (GROUPS, LANES, VECTOR))
        largest = tl.reduce(tl.reduce(tl.abs(values), 2, larger), 1, larger)
        scale = scale_of(largest, TOP, CARRY)[:, None, None]
        found = encode_tile(values, scale, piece.dtype, CARRY, LOWEST, LARGEST, PTX,
                            codes.dtype.element_ty)  # fmt: skip
        columns = i * WIDTH + column
        tl.store(codes + columns, tl.reshape(found, (WIDTH,)), mask=columns < k)
        spread = tl.where(lane[None, :, None] == i, scale, spread)
    own = tl.reduce(spread, 2, larger)  # of equal values: nothing is computed
    group = lane[None, :] * GROUPS + tl.arange(0, GROUPS)[:, None]
    places = scales + group.to(tl.int64) * scale_group
    store_scales(places, own, group < groups, LAST, PTX)


@triton.jit
def normalize_rows(
    x, residual, total, weight, codes, scales, input_scale, eps, groups, stride_x,
    stride_residual, stride_total, stride_codes, scale_group, k: tl.constexpr, WIDTH: tl.constexpr,
    PIECES: tl.constexpr, SIZE: tl.constexpr, LANES: tl.constexpr, NUM: tl.constexpr,
    NUM_WIDTH: tl.constexpr, LOWEST: tl.constexpr, LARGEST: tl.constexpr, PTX: tl.constexpr,
    TOP: tl.constexpr, CARRY: tl.constexpr, FIRST: tl.constexpr, EARLY: tl.constexpr,
    LATE: tl.constexpr,
):  # fmt: skip
    """Quantize the norm of one row: in groups of SIZE columns, or with one scale.

    LANES: threads that hold a group, where all scales are stored at once; 0: piece by piece. LATE:
    the weight is read then when the mean is known, so that no registers are kept for it.
    NUM: static scales, of which the largest counts; 0: the scale is computed. Where codes have x's
    dtype, the norm itself is stored. FIRST: x leaves the cache first, so that codes stay in it.
    """
    if EARLY:
        wait_for_kernel_before()
    row = tl.program_id(0).to(tl.int64)
    pieces = load_row(x + row * stride_x, k, WIDTH, PIECES, "evict_first" if FIRST else "")
    ADDED: tl.constexpr = residual is not None
    if ADDED:
        pieces = add_row(pieces, residual + row * stride_residual, total + row * stride_total, k,
                         WIDTH)  # fmt: skip
    LEAVES: tl.constexpr = "evict_last" if FIRST else ""
    inverse = 0.0
    if LATE and LANES > 0:
        inverse = inverse_of(pieces, eps, k, WIDTH, PTX)
        weight += zero_behind(inverse)
    else:
        pieces = normed(pieces, weight, eps, k, WIDTH, LEAVES, LATE, PTX)
    codes += row * stride_codes
    if codes.dtype.element_ty == x.dtype.element_ty:
        store_row(codes, pieces, k, WIDTH)
    elif NUM > 0:
        encode_by_given(pieces, codes, scales, input_scale, row, k, WIDTH, NUM, NUM_WIDTH, LOWEST,
                        LARGEST, PTX)  # fmt: skip
    elif SIZE == 0:
        scale = scale_of_row(pieces, WIDTH, False, PTX, TOP, CARRY)
        tl.store(scales + row, scale)
        encode_row(pieces, codes, scale, k, WIDTH, LARGEST < NEAR_ENOUGH, LOWEST, LARGEST, PTX)
    elif LANES > 0:
        encode_groups_at_once(pieces, inverse, weight, codes, scales + row, k, groups, scale_group,
                              WIDTH, SIZE, LANES, LOWEST, LARGEST, PTX, TOP, CARRY,
                              ADDED or FIRST or LATE, LATE, LEAVES)  # fmt: skip
    else:
        encode_groups(pieces, codes, scales + row, k, groups, scale_group, WIDTH, SIZE, LOWEST,
                      LARGEST, PTX, TOP, CARRY, ADDED and EARLY)  # fmt: skip
