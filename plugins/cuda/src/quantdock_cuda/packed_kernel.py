"""Products with packed codes for Hopper's asynchronous tensor cores.

One warp copies words, their scales and x ahead; one to three groups of four warps have 64 rows of
the weight each, whose codes they unpack into registers: the left operand of a product that runs
while the next codes are unpacked. All groups of a program share its x. (Plain Triton,
quantdock_triton.packed_matmul, waits for each product before it unpacks the next codes.) Programs
start, and ask for their first words, while the kernel before ends.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from quantdock_cuda.block_kernel import let_kernel_after_start
from quantdock_cuda.block_operands import wait_for_kernel_before
from quantdock_cuda.packed_factors import (
    copy_bytes,
    copy_factors,
    places_of,
    read_bytes,
    read_factors,
    room_for_bytes,
    room_for_factors,
)
from quantdock_cuda.packed_operand import operand
from quantdock_cuda.packed_result import finish, scaled, store_part, sum_of_parts
from quantdock_cuda.packed_units import GROUP, room_of, share_of, sharers_of, unit_of

# The second name is that of Triton 3.6.
start_copy = tma.async_load if hasattr(tma, "async_load") else tma.async_copy_global_to_shared
PRODUCER_REGISTERS = gl.constexpr(24)
MORE_REGISTERS = gl.constexpr(40)  # of a producer that has addresses of scales for three groups
WARP = gl.constexpr(32)  # threads


@gluon.jit
def words_at(block, step, steps, FORM: gl.constexpr):
    """Return the row and column of a block of words, which lie in blocks, or like the weight."""
    row, column = (block * steps + step) * GROUP, 0
    if FORM.is_plain:
        row, column = block * GROUP, step * FORM.plane
    return row, column


@gluon.jit
def copy_words(words, given, places, rings, left, turn, step, sizes, FORM: gl.constexpr):
    """Ask for the words of a step, and for their scales and zero points."""
    words_buffer, words_ready, scale_buffer, zero_buffer = rings[0], rings[1], rings[6], rings[7]
    GROUPS: gl.constexpr = FORM.groups
    _, zero, groups, strides, stored = given
    slot = turn % FORM.stages
    bar = words_ready.index(slot)
    mbarrier.expect(bar, GROUPS * words.block_type.nbytes)
    for group in gl.static_range(GROUPS):
        place = words_at(left // GROUP + group, step, sizes[3], FORM)
        start_copy(words, place, bar, words_buffer.index(slot * GROUPS + group))
    if FORM.per_group > 0:
        copy_factors(places[0], scale_buffer, turn, step, groups, strides[0], FORM)
        if zero is not None:
            copy_factors(places[1], zero_buffer, turn, step, groups, strides[0], FORM)
    if FORM.pieces > 0:
        copy_bytes(stored, scale_buffer, turn, left, step, sizes[2], sizes[3], FORM)
    if FORM.per_group > 0 or FORM.pieces > 0:
        async_copy.mbarrier_arrive(bar, increment_count=False)


@gluon.jit
def produce(words, x, given, rings, sizes, FORM: gl.constexpr):
    """Copy the words and the x of one step after the other into the slots that are free.

    Words of the first steps are asked for before the kernel that writes x is done.
    """
    words_free, x_buffer, x_ready, x_free = rings[2], rings[3], rings[4], rings[5]
    PIECES: gl.constexpr = FORM.planes // FORM.taken
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
            for piece in gl.static_range(PIECES):
                x_turn = turn * PIECES + piece
                x_slot = x_turn % FORM.x_stages
                mbarrier.wait(x_free.index(x_slot), (x_turn // FORM.x_stages & 1) ^ 1)
                bar = x_ready.index(x_slot)
                mbarrier.expect(bar, x.block_type.nbytes)
                column = (step * PIECES + piece) * FORM.taken * FORM.plane
                start_copy(x, [top, column], bar, x_buffer.index(x_slot))
        start += last - first


@gluon.jit
def x_of(rings, turn, PLACE: gl.constexpr, FORM: gl.constexpr):
    """Return the right operand of a place [plane, m], once it is there, and its slot."""
    x_buffer, x_ready = rings[3], rings[4]
    x_turn = turn * (FORM.planes // FORM.taken) + PLACE // FORM.taken
    slot = x_turn % FORM.x_stages
    if PLACE % FORM.taken == 0:
        mbarrier.wait(x_ready.index(slot), x_turn // FORM.x_stages & 1)
    given = x_buffer.index(slot).slice(PLACE % FORM.taken * FORM.plane, FORM.plane, dim=1)
    return given.permute((1, 0)), slot


@gluon.jit
def step_sum(total, words, zeros, scales, rings, turn, slot, FORM: gl.constexpr,
             ONE_SUM: gl.constexpr, LAYOUT: gl.constexpr):  # fmt: skip
    """Return ``total``, the product that still runs, its left operand, and the slot of its x."""
    words_free, x_buffer, x_free = rings[2], rings[3], rings[5]
    dtype: gl.constexpr = x_buffer.dtype
    PLANES: gl.constexpr = FORM.planes
    unset = gl.full([GROUP, FORM.m], 0.0, gl.float32, LAYOUT)
    weight = operand(words, zeros, scales, 0, FORM, dtype)
    given, x_slot = x_of(rings, turn, 0, FORM)
    product = warpgroup_mma(weight, given, total if ONE_SUM else unset, use_acc=ONE_SUM,
                            is_async=True)  # fmt: skip
    # Not before something has needed all words: a barrier waits for no read of shared memory.
    mbarrier.arrive(words_free.index(slot), count=1)
    for place in gl.static_range(1, PLANES):
        following = operand(words, zeros, scales, place, FORM, dtype)
        given, next_slot = x_of(rings, turn, place, FORM)
        if ONE_SUM or place % FORM.run > 0:
            product = warpgroup_mma(following, given, product, is_async=True)
            product, weight = warpgroup_mma_wait(1, deps=[product, weight])
        else:
            next_product = warpgroup_mma(following, given, unset, use_acc=False, is_async=True)
            product, weight = warpgroup_mma_wait(1, deps=[product, weight])
            total += product * gl.expand_dims(scales[place // FORM.run - 1], 1)
            product = next_product
        if place % FORM.taken == 0:
            mbarrier.arrive(x_free.index(x_slot), count=1)
        weight, x_slot = following, next_slot
    return total, product, weight, x_slot


@gluon.jit
def packed_sum(rings, zero, columns, start, first, last, FORM: gl.constexpr, PART: gl.constexpr,
               LAYOUT: gl.constexpr):  # fmt: skip
    """Return the sum over some steps [64, m]."""
    words_buffer, words_ready, x_free = rings[0], rings[1], rings[5]
    CODES: gl.constexpr = gl.DotOperandLayout(0, LAYOUT, 2)
    ONE_SUM: gl.constexpr = FORM.folded or FORM.per_group == 0
    total = gl.full([GROUP, FORM.m], 0.0, gl.float32, LAYOUT)
    same = (gl.full([GROUP], FORM.middle, gl.float32, gl.SliceLayout(1, CODES)),)
    if zero is not None and FORM.per_group == 0:
        same = (gl.load(zero + gl.convert_layout(columns, gl.SliceLayout(1, CODES))),)
    for step in range(first, last):
        turn = start + step - first
        slot = turn % FORM.stages
        mbarrier.wait(words_ready.index(slot), turn // FORM.stages & 1)
        scales, zeros = (), same
        if FORM.per_group > 0:
            scales = read_factors(rings[6], turn, FORM, PART, CODES if FORM.folded else LAYOUT)
        if FORM.per_group > 0 and zero is not None:
            zeros = read_factors(rings[7], turn, FORM, PART, CODES)
        if FORM.pieces > 0:
            scales = read_bytes(rings[6], turn, FORM, PART, CODES)
        words = words_buffer.index(slot * FORM.groups + PART).load(CODES)
        total, product, weight, x_slot = step_sum(total, words, zeros, scales, rings, turn, slot,
                                                  FORM, ONE_SUM, LAYOUT)  # fmt: skip
        product, weight = warpgroup_mma_wait(0, deps=[product, weight])
        mbarrier.arrive(x_free.index(x_slot), count=1)
        if ONE_SUM:
            total = product
        else:
            total += product * gl.expand_dims(scales[(FORM.planes - 1) // FORM.run], 1)
    return total


@gluon.jit
def consume(rings, given, result, sizes, FORM: gl.constexpr, PART: gl.constexpr):
    """Compute 64 rows of the weight of one unit after the other, by four warps."""
    LAYOUT: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, FORM.m, 16]
    )
    wait_for_kernel_before()
    let_kernel_after_start()
    out, bias, partial, counters, stride_out = result
    m, first_row, n, steps, whole, _, _ = sizes
    share, start = share_of(sizes, FORM), 0
    for unit in range(share[0]):
        tile, top, left, first, last = unit_of(unit, share, sizes, FORM)
        left += PART * GROUP
        columns = left + gl.arange(0, GROUP, layout=gl.SliceLayout(1, LAYOUT))
        columns = gl.minimum(columns, n - 1)
        total = gl.full([GROUP, FORM.m], 0.0, gl.float32, LAYOUT)
        if FORM.joined > 1:
            pieces = gl.where(last - first < steps, 1, FORM.joined)
            for number in range(pieces):
                begin = number * (last - first) // pieces
                end = (number + 1) * (last - first) // pieces
                total += packed_sum(rings, given[1], columns, start + begin, first + begin,
                                    first + end, FORM, PART, LAYOUT)  # fmt: skip
        else:
            total = packed_sum(rings, given[1], columns, start, first, last, FORM, PART, LAYOUT)
        is_last = unit >= 0
        if FORM.split:  # noqa: SIM102
            if last - first < steps:
                lowest, count = sharers_of(tile, sizes)
                place = partial + room_of(gl.program_id(0), first == 0, FORM, PART)
                counter = counters + (tile - whole) * FORM.groups + PART
                is_last = store_part(total, place, counter, count, FORM.m)
                if is_last:
                    total = sum_of_parts(partial, lowest, count, FORM, PART, LAYOUT)
        if is_last:
            total = scaled(total, given, columns, FORM)
            finish(total, out, bias, top, left, m, first_row, n, stride_out, FORM.m, LAYOUT)
        start += last - first


@gluon.jit
def barriers(STAGES: gl.constexpr, GROUPS: gl.constexpr, ARRIVALS: gl.constexpr):
    """Return barriers that say that slots are filled, and that they are free."""
    ready = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    free = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for slot in gl.static_range(STAGES):
        mbarrier.init(ready.index(slot), count=ARRIVALS)
        mbarrier.init(free.index(slot), count=GROUPS)
    return ready, free


@gluon.jit
def rings_of(words, x, zero, FORM: gl.constexpr):
    """Return the slots that are filled in turn, and the barriers that say so."""
    words_buffer = gl.allocate_shared_memory(
        words.dtype, [FORM.stages * FORM.groups, GROUP, FORM.plane], words.layout
    )
    x_buffer = gl.allocate_shared_memory(
        x.dtype, [FORM.x_stages, FORM.m, FORM.taken * FORM.plane], x.layout
    )
    # Words arrive by the copy engine, scales by the threads of a warp.
    ARRIVALS: gl.constexpr = 1 + WARP if FORM.per_group > 0 or FORM.pieces > 0 else 1
    words_ready, words_free = barriers(FORM.stages, FORM.groups, ARRIVALS)
    x_ready, x_free = barriers(FORM.x_stages, FORM.groups, 1)
    scale_buffer, zero_buffer = x_buffer, x_buffer
    if FORM.per_group > 0:
        scale_buffer = room_for_factors(FORM)
        if zero is not None:
            zero_buffer = room_for_factors(FORM)
    if FORM.pieces > 0:
        scale_buffer = room_for_bytes(FORM)
    fence_async_shared()
    return (words_buffer, words_ready, words_free, x_buffer, x_ready, x_free, scale_buffer,
            zero_buffer)  # fmt: skip


@gluon.jit(do_not_specialize=["m", "steps", "whole", "sharers", "shared", "groups", "stride_scale",
                              "stride_row"])  # fmt: skip
def packed_matmul(words, x, scale, zero, stored, bias, out, partial, counters, m, first_row, n,
                  steps, whole, sharers, shared, groups, stride_scale, stride_row, stride_out,
                  FORM: gl.constexpr, REGISTERS: gl.constexpr):  # fmt: skip
    """Compute tiles of ``out`` [M, N], or parts of their sums, from descriptors of words and x.

    ``stored`` are scales that are bytes; ``scale`` has those of rows then.
    """
    rings = rings_of(words, x, zero, FORM)
    sizes = (m, first_row, n, steps, whole, sharers, shared)
    given = (scale, zero, groups, (stride_scale, stride_row), stored)
    result = (out, bias, partial, counters, stride_out)
    if FORM.groups == 1:
        gl.warp_specialize([
            (consume, (rings, given, result, sizes, FORM, 0)),
            (produce, (words, x, given, rings, sizes, FORM)),
        ], [1], [PRODUCER_REGISTERS])  # fmt: skip
    elif FORM.groups == 2:
        gl.warp_specialize([
            (consume, (rings, given, result, sizes, FORM, 0)),
            (consume, (rings, given, result, sizes, FORM, 1)),
            (produce, (words, x, given, rings, sizes, FORM)),
        ], [4, 1], [REGISTERS, PRODUCER_REGISTERS])  # fmt: skip
    else:
        gl.warp_specialize([
            (consume, (rings, given, result, sizes, FORM, 0)),
            (consume, (rings, given, result, sizes, FORM, 1)),
            (consume, (rings, given, result, sizes, FORM, 2)),
            (produce, (words, x, given, rings, sizes, FORM)),
        ], [4, 4, 1], [REGISTERS, REGISTERS, MORE_REGISTERS])  # fmt: skip
