"""The warp of packed_kernel that copies: words, their scales and zero points, and x."""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma

from quantdock_cuda.block_operands import wait_for_kernel_before
from quantdock_cuda.packed_factors import copy_bytes, copy_factors, places_of
from quantdock_cuda.packed_units import GROUP, share_of, unit_of

# The second name is that of Triton 3.6.
start_copy = tma.async_load if hasattr(tma, "async_load") else tma.async_copy_global_to_shared
WARP = gl.constexpr(32)  # threads


@gluon.jit
def words_at(block, step, steps, FORM: gl.constexpr):
    """Return the row and column of a block of words, which lie in blocks, or like the weight."""
    row, column = (block * steps + step) * GROUP, 0
    if FORM.is_plain:
        row, column = block * GROUP, step * FORM.plane
    return row, column


@gluon.jit
def copy_words(words, given, places, rings, left, turn, step, sizes, FORM: gl.constexpr,
               origin=0):  # fmt: skip
    """Ask for the words of a step, and for their scales and zero points.

    ``origin`` is the first row of blocks of the weight, of which there may be several.
    """
    words_buffer, words_ready, scale_buffer, zero_buffer = rings[0], rings[1], rings[6], rings[7]
    GROUPS: gl.constexpr = FORM.groups
    _, zero, groups, strides, stored = given
    slot = turn % FORM.stages
    bar = words_ready.index(slot)
    mbarrier.expect(bar, GROUPS * words.block_type.nbytes)
    for group in gl.static_range(GROUPS):
        place = words_at(origin + left // GROUP + group, step, sizes[3], FORM)
        start_copy(words, place, bar, words_buffer.index(slot * GROUPS + group))
    if FORM.per_group > 0:
        copy_factors(places[0], scale_buffer, turn, step, groups, strides[0], FORM)
        if zero is not None:
            copy_factors(places[1], zero_buffer, turn, step, groups, strides[0], FORM)
    if FORM.pieces > 0:
        copy_bytes(stored, scale_buffer, turn, left, step, sizes[2], sizes[3], FORM,
                   origin)  # fmt: skip
    if FORM.per_group > 0 or FORM.pieces > 0:
        async_copy.mbarrier_arrive(bar, increment_count=False)


@gluon.jit
def copy_x(x, rings, top, first_turn, step, COUNT: gl.constexpr, FORM: gl.constexpr):
    """Ask for the x of a step, ``COUNT`` copies of it, as soon as their slots are free."""
    x_buffer, x_ready, x_free = rings[3], rings[4], rings[5]
    for piece in gl.static_range(COUNT):
        x_turn = first_turn + piece
        x_slot = x_turn % FORM.x_stages
        mbarrier.wait(x_free.index(x_slot), (x_turn // FORM.x_stages & 1) ^ 1)
        bar = x_ready.index(x_slot)
        mbarrier.expect(bar, x.block_type.nbytes)
        column = (step * FORM.x_turns + piece) * FORM.taken * FORM.plane
        start_copy(x, [top, column], bar, x_buffer.index(x_slot))


@gluon.jit
def produce(words, x, given, rings, sizes, FORM: gl.constexpr):
    """Copy the words and the x of one step after the other into the slots that are free.

    Words of the first steps are asked for before the kernel that writes x is done.
    """
    words_free = rings[2]
    share = share_of(sizes, FORM)
    _, _, left, first, last = unit_of(0, share, sizes, FORM)
    places = places_of(given, left, sizes[2], FORM)
    ahead = gl.minimum(last - first, FORM.stages)
    for turn in range(ahead):
        copy_words(words, given, places, rings, left, turn, first + turn, sizes, FORM)
    wait_for_kernel_before()
    start = 0
    for unit in range(share[0]):
        _, top, left, first, last = unit_of(unit, share, sizes, FORM)
        places = places_of(given, left, sizes[2], FORM)
        for step in range(first, last):
            turn = start + step - first
            if turn >= ahead:
                mbarrier.wait(words_free.index(turn % FORM.stages), (turn // FORM.stages & 1) ^ 1)
                copy_words(words, given, places, rings, left, turn, step, sizes, FORM)
            copy_x(x, rings, top, turn * FORM.x_turns, step, FORM.x_turns, FORM)
        start += last - first
