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
    pieces, codes, scales, k, groups, scale_group, WIDTH: tl.constexpr, SIZE: tl.constexpr,
    LANES: tl.constexpr, LOWEST: tl.constexpr, LARGEST: tl.constexpr, PTX: tl.constexpr,
    TOP: tl.constexpr, CARRY: tl.constexpr, LAST: tl.constexpr,
):  # fmt: skip
    """Store what ``encode_groups`` does, all scales of the row in one write behind the codes.

    Each of the LANES threads that hold a group of a piece has its scale in another piece.
    """
    GROUPS: tl.constexpr = WIDTH // SIZE
    VECTOR: tl.constexpr = SIZE // LANES
    lane = tl.arange(0, LANES)
    spread = tl.zeros([GROUPS, LANES, VECTOR], dtype=tl.float32)
    for i in tl.static_range(len(pieces)):
        values = tl.reshape(wide(pieces[i], PTX), (GROUPS, LANES, VECTOR))
        largest = tl.reduce(tl.reduce(tl.abs(values), 2, larger), 1, larger)
        scale = scale_of(largest, TOP, CARRY)[:, None, None]
        found = encode_tile(values, scale, pieces[i].dtype, CARRY, LOWEST, LARGEST, PTX,
                            codes.dtype.element_ty)  # fmt: skip
        columns = i * WIDTH + tl.arange(0, WIDTH)
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
):  # fmt: skip
    """Quantize the norm of one row: in groups of SIZE columns, or with one scale.

    LANES: threads that hold a group, where all scales are stored at once; 0: piece by piece.
    NUM: static scales, of which the largest counts; 0: the scale is computed. Where codes have x's
    dtype, the norm itself is stored. FIRST: x leaves the cache first, so that codes stay in it.
    """
    if EARLY:
        wait_for_kernel_before()
    row = tl.program_id(0).to(tl.int64)
    pieces = load_row(x + row * stride_x, k, WIDTH, PIECES, "evict_first" if FIRST else "")
    ADDED: tl.constexpr = residual is not None
    if ADDED:
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
    elif LANES > 0:
        encode_groups_at_once(pieces, codes, scales + row, k, groups, scale_group, WIDTH, SIZE,
                              LANES, LOWEST, LARGEST, PTX, TOP, CARRY, ADDED or FIRST)  # fmt: skip
    else:
        encode_groups(pieces, codes, scales + row, k, groups, scale_group, WIDTH, SIZE, LOWEST,
                      LARGEST, PTX, TOP, CARRY, ADDED and EARLY)  # fmt: skip
