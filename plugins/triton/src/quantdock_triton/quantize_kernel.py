"""Activations to codes and scales in Triton: one read of x, one write of the codes.

SILU: x has two halves, gate and up, and what is quantized is silu(gate) * up.
"""

from __future__ import annotations

import triton
import triton.language as tl

from quantdock_triton.encode_kernel import (
    NEAR_ENOUGH,
    SMALLEST_SCALE,
    encode,
    encode_tile,
    larger,
    larger_of,
    load,
    load_through,
    scale_of,
    wide,
)

LAST_NAN = tl.constexpr(0x7FFFFFFE)  # bits of an f32, to which 1 can be added
MOST_LOOKS = tl.constexpr(1 << 22)  # at what other programs found; some seconds


@triton.jit
def wait_for_kernel_before():
    """Wait until the kernel before is done, which may write x; then let the one after start."""
    tl.inline_asm_elementwise(
        "griddepcontrol.wait; griddepcontrol.launch_dependents; // dummy $0", "=r", [],
        dtype=tl.int32, is_pure=False, pack=1,
    )  # fmt: skip


@triton.jit(do_not_specialize=["m", "scale_row", "scale_group"])
def quantize_tiles(
    x, codes, scales, m, k, groups, stride_x, stride_codes, scale_row, scale_group,
    SIZE: tl.constexpr, ROWS: tl.constexpr, GROUPS: tl.constexpr, WIDTH: tl.constexpr,
    SILU: tl.constexpr, LOWEST: tl.constexpr, LARGEST: tl.constexpr, PTX: tl.constexpr,
    TOP: tl.constexpr, CARRY: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Quantize ROWS x GROUPS tiles of one row and SIZE columns; WIDTH holds a tile."""
    if EARLY:
        wait_for_kernel_before()
    across = tl.cdiv(groups, GROUPS)
    top, left = tl.program_id(0) // across * ROWS, tl.program_id(0) % across * GROUPS
    rows = (top + tl.arange(0, ROWS)).to(tl.int64)[:, None, None]
    group = (left + tl.arange(0, GROUPS))[None, :, None]
    column = tl.arange(0, WIDTH)[None, None, :]
    columns = group * SIZE + column
    inside = (rows < m) & (columns < k)
    if SIZE < WIDTH:
        inside &= column < SIZE
    values = wide(load(x + rows * stride_x + columns, inside, k, SILU, PTX), PTX)
    scale = scale_of(tl.reduce(tl.abs(values), 2, larger), TOP, CARRY)[:, :, None]
    found = encode_tile(values, scale, x.dtype.element_ty, CARRY, LOWEST, LARGEST, PTX,
                        codes.dtype.element_ty)  # fmt: skip
    tl.store(codes + rows * stride_codes + columns, found, mask=inside)
    places = scales + rows * scale_row + group.to(tl.int64) * scale_group
    tl.store(places, scale, mask=(rows < m) & (group < groups))


@triton.jit
def scale_of_row(pieces, WIDTH: tl.constexpr, WIDE: tl.constexpr, PTX: tl.constexpr,
                 TOP: tl.constexpr, CARRY: tl.constexpr):  # fmt: skip
    """Return the scale of a row that is held in pieces of WIDTH columns.

    WIDE: look at f32, which is kept for the codes; else at 16 bits, which takes fewer registers.
    """
    if WIDE:
        most = tl.zeros([WIDTH], dtype=tl.float32)
        for i in tl.static_range(len(pieces)):
            most = larger(most, tl.abs(wide(pieces[i], PTX)))
    else:
        shorts = tl.zeros([WIDTH], dtype=pieces[0].dtype)
        for i in tl.static_range(len(pieces)):
            shorts = larger_of(shorts, pieces[i], PTX)
        most = wide(shorts, PTX)
    return scale_of(tl.reduce(most, 0, larger), TOP, CARRY)


@triton.jit
def encode_row(pieces, codes, scale, k, WIDTH: tl.constexpr, IS_FAR: tl.constexpr,
               LOWEST: tl.constexpr, LARGEST: tl.constexpr, PTX: tl.constexpr):  # fmt: skip
    """Store the codes of a row that is held in pieces of WIDTH columns."""
    for i in tl.static_range(len(pieces)):
        columns = i * WIDTH + tl.arange(0, WIDTH)
        found = encode(wide(pieces[i], PTX), scale, pieces[i].dtype, IS_FAR, LOWEST, LARGEST, PTX,
                       codes.dtype.element_ty)  # fmt: skip
        tl.store(codes + columns, found, mask=columns < k)


@triton.jit
def quantize_rows(
    x, codes, scales, k, stride_x, stride_codes, WIDTH: tl.constexpr, PIECES: tl.constexpr,
    SILU: tl.constexpr, LOWEST: tl.constexpr, LARGEST: tl.constexpr, PTX: tl.constexpr,
    TOP: tl.constexpr, CARRY: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Quantize one row, which is held in registers in PIECES of WIDTH columns."""
    if EARLY:
        wait_for_kernel_before()
    row = tl.program_id(0).to(tl.int64)
    x += row * stride_x
    pieces = ()
    for i in tl.static_range(PIECES):
        columns = i * WIDTH + tl.arange(0, WIDTH)
        pieces += (load(x + columns, columns < k, k, SILU, PTX),)
    # Gates took longer with fewer registers: 0.84 of a copy instead of 0.95 (4096 x 7168, H200).
    scale = scale_of_row(pieces, WIDTH, SILU, PTX, TOP, CARRY)
    tl.store(scales + row, scale)
    encode_row(pieces, codes + row * stride_codes, scale, k, WIDTH, LARGEST < NEAR_ENOUGH, LOWEST,
               LARGEST, PTX)  # fmt: skip


@triton.jit
def quantize_long_row(
    x, codes, scales, k, stride_x, stride_codes, WIDTH: tl.constexpr, SILU: tl.constexpr,
    LOWEST: tl.constexpr, LARGEST: tl.constexpr, PTX: tl.constexpr, TOP: tl.constexpr,
    CARRY: tl.constexpr,
):  # fmt: skip
    """Quantize one row in turns of WIDTH columns; the second look at x finds it in cache."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, WIDTH)
    x += row * stride_x
    most = tl.zeros([WIDTH], dtype=tl.float32)
    for left in range(0, k, WIDTH):
        columns = left + column
        values = wide(load(x + columns, columns < k, k, SILU, PTX), PTX)
        most = larger(most, tl.abs(values))
    scale = scale_of(tl.reduce(most, 0, larger), TOP, CARRY)
    tl.store(scales + row, scale)
    codes += row * stride_codes
    for left in range(0, k, WIDTH):
        columns = left + column
        values = wide(load(x + columns, columns < k, k, SILU, PTX), PTX)
        found = encode(values, scale, x.dtype.element_ty, LARGEST < NEAR_ENOUGH, LOWEST, LARGEST,
                       PTX, codes.dtype.element_ty)  # fmt: skip
        tl.store(codes + columns, found, mask=columns < k)


@triton.jit
def load_block(x, top, left, m, k, stride_x, ROWS: tl.constexpr, WIDTH: tl.constexpr,
               SILU: tl.constexpr, PTX: tl.constexpr, CACHE: tl.constexpr):  # fmt: skip
    """Return ROWS x WIDTH values of x, in its dtype; 0 beyond it."""
    rows = (top + tl.arange(0, ROWS)).to(tl.int64)[:, None]
    columns = (left + tl.arange(0, WIDTH))[None, :]
    inside = (rows < m) & (columns < k)
    return load_through(x + rows * stride_x + columns, inside, k, SILU, PTX, CACHE)


@triton.jit
def encode_block(
    values, codes, scale, top, left, m, k, stride_codes, IS_FAR: tl.constexpr, ROWS: tl.constexpr,
    WIDTH: tl.constexpr, LOWEST: tl.constexpr, LARGEST: tl.constexpr, PTX: tl.constexpr,
):  # fmt: skip
    """Store the codes of ROWS x WIDTH values with one scale."""
    rows = (top + tl.arange(0, ROWS)).to(tl.int64)[:, None]
    columns = (left + tl.arange(0, WIDTH))[None, :]
    found = encode(wide(values, PTX), scale, values.dtype, IS_FAR, LOWEST, LARGEST, PTX,
                   codes.dtype.element_ty)  # fmt: skip
    tl.store(codes + rows * stride_codes + columns, found, mask=(rows < m) & (columns < k))


@triton.jit(do_not_specialize=["m"])
def quantize_static(
    x, codes, input_scale, folded_scale, m, k, stride_x, stride_codes,
    NUM: tl.constexpr, NUM_WIDTH: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr,
    SILU: tl.constexpr, LOWEST: tl.constexpr, LARGEST: tl.constexpr, PTX: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    """Quantize all of x with the largest of NUM scales, which is stored too."""
    if EARLY:
        wait_for_kernel_before()
    index = tl.arange(0, NUM_WIDTH)
    scale = tl.max(tl.load(input_scale + index, mask=index < NUM, other=0.0), axis=0)
    if tl.program_id(0) == 0:
        tl.store(folded_scale, scale)
    # A stored scale of 0 marks zeros; 0 / 0 would be NaN.
    scale = tl.maximum(scale, SMALLEST_SCALE)
    across = tl.cdiv(k, WIDTH)
    top, left = tl.program_id(0) // across * ROWS, tl.program_id(0) % across * WIDTH
    values = load_block(x, top, left, m, k, stride_x, ROWS, WIDTH, SILU, PTX, "")
    encode_block(values, codes, scale, top, left, m, k, stride_codes, True, ROWS, WIDTH, LOWEST,
                 LARGEST, PTX)  # fmt: skip


@triton.jit(do_not_specialize=["m"])
def largest_of_parts(
    x, parts, m, k, stride_x, ROWS: tl.constexpr, WIDTH: tl.constexpr, SILU: tl.constexpr,
    PTX: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Store the largest magnitude of every so many blocks of ROWS x WIDTH for each program."""
    if EARLY:
        wait_for_kernel_before()
    across = tl.cdiv(k, WIDTH)
    most = tl.zeros([ROWS, WIDTH], dtype=tl.float32)
    for block in range(tl.program_id(0), tl.cdiv(m, ROWS) * across, tl.num_programs(0)):
        values = load_block(x, block // across * ROWS, block % across * WIDTH, m, k, stride_x, ROWS,
                            WIDTH, SILU, PTX, "")  # fmt: skip
        most = larger(most, tl.abs(wide(values, PTX)))
    tl.store(parts + tl.program_id(0), tl.reduce(tl.reduce(most, 1, larger), 0, larger))


@triton.jit(do_not_specialize=["m", "num_parts"])
def quantize_whole(
    x, codes, parts, num_parts, scales, m, k, stride_x, stride_codes, NUM_WIDTH: tl.constexpr,
    ROWS: tl.constexpr, WIDTH: tl.constexpr, SILU: tl.constexpr, LOWEST: tl.constexpr,
    LARGEST: tl.constexpr, PTX: tl.constexpr, TOP: tl.constexpr, CARRY: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    """Quantize all of x with the one scale that its parts give, which is stored too.

    From the end on, which was read last and is in cache. EARLY: there is a program for each block,
    which reads it while ``largest_of_parts`` ends; x was there before that began.
    """
    across = tl.cdiv(k, WIDTH)
    blocks = tl.cdiv(m, ROWS) * across
    if EARLY:
        top, left = tl.program_id(0) // across * ROWS, tl.program_id(0) % across * WIDTH
        values = load_block(x, top, left, m, k, stride_x, ROWS, WIDTH, SILU, PTX, ".cg")
        wait_for_kernel_before()
    index = tl.arange(0, NUM_WIDTH)
    most = tl.load(parts + index, mask=index < num_parts, other=0.0)
    scale = scale_of(tl.reduce(most, 0, larger), TOP, CARRY)
    if tl.program_id(0) == 0:
        tl.store(scales, scale)
    IS_FAR: tl.constexpr = LARGEST < NEAR_ENOUGH
    if EARLY:
        encode_block(values, codes, scale, top, left, m, k, stride_codes, IS_FAR, ROWS, WIDTH,
                     LOWEST, LARGEST, PTX)  # fmt: skip
    else:
        for turn in range(tl.program_id(0), blocks, tl.num_programs(0)):
            block = blocks - 1 - turn
            top, left = block // across * ROWS, block % across * WIDTH
            values = load_block(x, top, left, m, k, stride_x, ROWS, WIDTH, SILU, PTX, "")
            encode_block(values, codes, scale, top, left, m, k, stride_codes, IS_FAR, ROWS, WIDTH,
                         LOWEST, LARGEST, PTX)  # fmt: skip


@triton.jit(do_not_specialize=["m"])
def quantize_together(
    x, codes, slots, scales, m, k, stride_x, stride_codes, ROWS: tl.constexpr,
    WIDTH: tl.constexpr, SLOTS: tl.constexpr, SILU: tl.constexpr, LOWEST: tl.constexpr,
    LARGEST: tl.constexpr, PTX: tl.constexpr, TOP: tl.constexpr, CARRY: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    """Quantize all of x with one scale, by programs that hold it and wait for each other.

    slots: int32 [1 + 2 * SLOTS]: the number of the half to use, then both: what each program found,
    as the bits of an f32 plus 1; 0: nothing yet. The first program clears the other half, which the
    launch before has used, and makes it the next. All programs run at once, and no other launch may
    have the same slots meanwhile; should one not find what the others tell, its codes are NaN.
    """
    if EARLY:
        wait_for_kernel_before()
    own, number, across = tl.program_id(0), tl.num_programs(0), tl.cdiv(k, WIDTH)
    half = tl.load(slots, cache_modifier=".cg")
    top, left = own // across * ROWS, own % across * WIDTH
    values = load_block(x, top, left, m, k, stride_x, ROWS, WIDTH, SILU, PTX, "")
    flat = tl.reshape(tl.abs(wide(values, PTX)), (ROWS * WIDTH,))
    most = tl.reduce(flat, 0, larger)
    bits = tl.minimum(most.to(tl.int32, bitcast=True), LAST_NAN)
    index = tl.arange(0, SLOTS)
    tl.atomic_xchg(slots + 1 + half * SLOTS + own, bits + 1, sem="relaxed")
    places, others = slots + 1 + half * SLOTS + index, index < number
    found = tl.load(places, mask=others, other=1, volatile=True)
    looks = 0
    while (tl.min(found, axis=0) == 0) & (looks < MOST_LOOKS):
        found = tl.load(places, mask=others, other=1, volatile=True)
        looks += 1
    most = (tl.max(found, axis=0) - 1).to(tl.float32, bitcast=True)
    scale = scale_of(tl.where(looks < MOST_LOOKS, most, float("nan")), TOP, CARRY)
    if own == 0:
        tl.store(scales, scale)
        tl.store(slots + 1 + (1 - half) * SLOTS + index, 0)
        tl.store(slots, 1 - half)
    encode_block(values, codes, scale, top, left, m, k, stride_codes, LARGEST < NEAR_ENOUGH, ROWS,
                 WIDTH, LOWEST, LARGEST, PTX)  # fmt: skip
