"""Operands of products in blocks, copied ahead by one warp: codes by the copy engine, scales beside
them. The kernel that multiplies is in ``block_kernel``."""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma

# The second names are those of Triton 3.6.
start_copy = tma.async_load if hasattr(tma, "async_load") else tma.async_copy_global_to_shared
start_reading = (
    async_copy.async_load
    if hasattr(async_copy, "async_load")
    else async_copy.async_copy_global_to_shared
)
STEP = gl.constexpr(128)  # columns that share a scale


@gluon.jit
def wait_for_kernel_before():
    """Wait until the kernel before this one is done; until then it may still write x."""
    gl.inline_asm_elementwise(
        "griddepcontrol.wait; // dummy $0", "=r", [], dtype=gl.int32, is_pure=False, pack=1
    )


@gluon.jit
def work_of(item, sizes, TILE: gl.constexpr, SPLIT: gl.constexpr):
    """Return the tile of an item of work, its part of the sum, its first row, column and step and
    the step after its last; ``TILE.band`` rows of tiles share weights in cache.
    """
    m, n, steps, parts, _ = sizes
    tile, part, first, last = item, 0, 0, steps
    if SPLIT:
        tile, part = item // parts, item % parts
        first, last = part * steps // parts, (part + 1) * steps // parts
    grid_m, grid_n = gl.cdiv(m, TILE.m), gl.cdiv(n, TILE.n)
    band = tile // (TILE.band * grid_n) * TILE.band
    height = gl.minimum(grid_m - band, TILE.band)
    within = tile % (TILE.band * grid_n)
    top, left = (band + within % height) * TILE.m, within // height * TILE.n
    return tile, part, top, left, first, last


@gluon.jit
def slots_of(first, last, TILE: gl.constexpr):
    """Return how many slots the steps of an item of work fill, in turns of two for each group."""
    TURN: gl.constexpr = 2 * TILE.slices  # steps
    return gl.cdiv(last - first, TURN) * (TURN * STEP // TILE.k)


@gluon.jit
def read_scales(slots, scales, slot, top, left, step, last, TILE: gl.constexpr,
                WEIGHT_ROWS: gl.constexpr):  # fmt: skip
    """Start reading the scales of a slot's steps; those of steps beyond the last are 0."""
    STEPS: gl.constexpr = TILE.k // STEP
    _, _, a_scales, b_scales, ready, _ = slots
    a_scale, quads, b_scale, b_scale_row = scales
    rows = top + gl.arange(0, TILE.m, layout=gl.BlockedLayout([4], [32], [1], [0]))
    one = gl.arange(0, 1, layout=gl.BlockedLayout([1], [32], [1], [0]))
    a_place = a_scale + rows
    b_place = b_scale + left // WEIGHT_ROWS * b_scale_row + one
    for number in gl.static_range(STEPS):
        inside = step + number < last
        start_reading(a_scales.index(slot * STEPS + number),
                      a_place + (step + number) * (quads * 4),
                      mask=(rows < quads * 4) & inside)  # fmt: skip
        start_reading(b_scales.index(slot * STEPS + number), b_place + step + number,
                      mask=(one < 1) & inside)  # fmt: skip
    async_copy.mbarrier_arrive(ready.index(slot))


@gluon.jit
def copy_codes(codes, row, step, buffer, slot, bar, TILE: gl.constexpr):
    """Start copying the codes of a slot's steps."""
    STEPS: gl.constexpr = TILE.k // STEP
    for number in gl.static_range(STEPS):
        place = buffer.index(slot * STEPS + number)
        start_copy(codes, [row, (step + number) * STEP], bar, place)


@gluon.jit
def produce(a, b, slots, scales, sizes, TILE: gl.constexpr, WEIGHT_ROWS: gl.constexpr,
            SPLIT: gl.constexpr):  # fmt: skip
    """Copy the operands of one slot after the other, as soon as it is free.

    Weights of the first slots are asked for before the kernel that writes x is done.
    """
    STEPS: gl.constexpr = TILE.k // STEP
    NUM_BYTES: gl.constexpr = (a.block_type.nbytes + b.block_type.nbytes) * STEPS
    a_buffer, b_buffer, _, _, ready, free = slots
    num_items = sizes[4]
    _, _, top, left, first, last = work_of(gl.program_id(0), sizes, TILE, SPLIT)
    ahead = gl.minimum(slots_of(first, last, TILE), TILE.stages)
    for slot in range(ahead):
        bar = ready.index(slot)
        mbarrier.expect(bar, NUM_BYTES)
        copy_codes(b, left, first + slot * STEPS, b_buffer, slot, bar, TILE)
    wait_for_kernel_before()
    count = 0
    for item in range(gl.program_id(0), num_items, gl.num_programs(0)):
        _, _, top, left, first, last = work_of(item, sizes, TILE, SPLIT)
        for turn in range(slots_of(first, last, TILE)):
            slot, step = count % TILE.stages, first + turn * STEPS
            bar = ready.index(slot)
            if count >= ahead:
                mbarrier.wait(free.index(slot), (count // TILE.stages & 1) ^ 1)
                mbarrier.expect(bar, NUM_BYTES)
                copy_codes(b, left, step, b_buffer, slot, bar, TILE)
            # Before x, whose bytes alone complete the slot: so it is not complete without scales.
            read_scales(slots, scales, slot, top, left, step, last, TILE, WEIGHT_ROWS)
            copy_codes(a, top, step, a_buffer, slot, bar, TILE)
            count += 1
