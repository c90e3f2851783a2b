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
    warpgroup_mma,
    warpgroup_mma_wait,
)

from quantdock_cuda.block_kernel import let_kernel_after_start
from quantdock_cuda.block_operands import wait_for_kernel_before
from quantdock_cuda.packed_copies import WARP, produce
from quantdock_cuda.packed_factors import (
    read_bytes,
    read_factors,
    room_for_bytes,
    room_for_factors,
)
from quantdock_cuda.packed_operand import operand
from quantdock_cuda.packed_result import finish, scaled, store_part, sum_of_parts
from quantdock_cuda.packed_units import GROUP, room_of, share_of, sharers_of, unit_of

PRODUCER_REGISTERS = gl.constexpr(24)
MORE_REGISTERS = gl.constexpr(40)  # of a producer that has addresses of scales for three groups


@gluon.jit
def next_slot(slot, phase, SLOTS: gl.constexpr):
    """Return the slot that is filled after this one, and what its barrier waits for."""
    slot += 1
    wraps = slot == SLOTS
    return gl.where(wraps, 0, slot), gl.where(wraps, phase ^ 1, phase)


@gluon.jit
def release(bar, FORM: gl.constexpr):
    """Say that these four warps need a slot no longer: each thread does, or one when all do."""
    if FORM.apart:
        async_copy.mbarrier_arrive(bar, increment_count=False)
    else:
        mbarrier.arrive(bar, count=1)


@gluon.jit
def x_of(x_buffer, slot, PLACE: gl.constexpr, FORM: gl.constexpr):
    """Return the right operand of a place [plane, m], of the first rows of x that are copied."""
    given = x_buffer.index(slot).slice(PLACE % FORM.taken * FORM.plane, FORM.plane, dim=1)
    if x_buffer.shape[1] > FORM.m:
        given = given.slice(0, FORM.m, dim=0)
    return given.permute((1, 0))


@gluon.jit
def step_sum(total, words, zeros, scales, rings, slot, x_slot, x_phase, PLANES: gl.constexpr,
             FORM: gl.constexpr, ONE_SUM: gl.constexpr, LAYOUT: gl.constexpr):  # fmt: skip
    """Return ``total``, the product that still runs, its left operand, and its x's slot and phase.

    The first x of the step is there, whose first ``PLANES`` planes count.
    """
    words_free, x_buffer, x_ready, x_free = rings[2], rings[3], rings[4], rings[5]
    dtype: gl.constexpr = x_buffer.dtype
    unset = gl.full([GROUP, FORM.m], 0.0, gl.float32, LAYOUT)
    weight = operand(words, zeros, scales, 0, FORM, dtype)
    product = warpgroup_mma(weight, x_of(x_buffer, x_slot, 0, FORM), total if ONE_SUM else unset,
                            use_acc=ONE_SUM, is_async=True)  # fmt: skip
    # Not before something has needed all words: a barrier waits for no read of shared memory.
    release(words_free.index(slot), FORM)
    for place in gl.static_range(1, PLANES):
        following = operand(words, zeros, scales, place, FORM, dtype)
        x_before = x_slot
        if place % FORM.taken == 0:
            x_slot, x_phase = next_slot(x_slot, x_phase, FORM.x_stages)
            mbarrier.wait(x_ready.index(x_slot), x_phase)
        given = x_of(x_buffer, x_slot, place, FORM)
        if ONE_SUM or place % FORM.run > 0:
            product = warpgroup_mma(following, given, product, is_async=True)
            product, weight = warpgroup_mma_wait(1, deps=[product, weight])
        else:
            next_product = warpgroup_mma(following, given, unset, use_acc=False, is_async=True)
            product, weight = warpgroup_mma_wait(1, deps=[product, weight])
            total += product * gl.expand_dims(scales[place // FORM.run - 1], 1)
            product = next_product
        if place % FORM.taken == 0:
            release(x_free.index(x_before), FORM)
        weight = following
    return total, product, weight, x_slot, x_phase


@gluon.jit
def add_step(total, same, rings, zero, turn, at, PLANES: gl.constexpr, FORM: gl.constexpr,
             PART: gl.constexpr, LAYOUT: gl.constexpr):  # fmt: skip
    """Return the sum with that of a step's first ``PLANES`` planes, and ``at`` of the next step.

    ``at`` are the slots of its words and of its x, and what their barriers wait for.
    """
    words_buffer, words_ready, x_ready, x_free = rings[0], rings[1], rings[4], rings[5]
    CODES: gl.constexpr = gl.DotOperandLayout(0, LAYOUT, 2)
    ONE_SUM: gl.constexpr = FORM.folded or FORM.per_group == 0
    slot, phase, x_slot, x_phase = at
    # First x: warps wait for each other where reads are followed by a wait at a barrier.
    mbarrier.wait(x_ready.index(x_slot), x_phase)
    mbarrier.wait(words_ready.index(slot), phase)
    scales, zeros = (), same
    if FORM.per_group > 0:
        scales = read_factors(rings[6], turn, FORM, PART, CODES if FORM.folded else LAYOUT)
    if FORM.per_group > 0 and zero is not None:
        zeros = read_factors(rings[7], turn, FORM, PART, CODES)
    if FORM.pieces > 0:
        scales = read_bytes(rings[6], turn, FORM, PART, CODES)
    words = words_buffer.index(slot * FORM.groups + PART).load(CODES)
    total, product, weight, x_slot, x_phase = step_sum(
        total, words, zeros, scales, rings, slot, x_slot, x_phase, PLANES, FORM, ONE_SUM, LAYOUT
    )
    product, weight = warpgroup_mma_wait(0, deps=[product, weight])
    release(x_free.index(x_slot), FORM)
    slot, phase = next_slot(slot, phase, FORM.stages)
    x_slot, x_phase = next_slot(x_slot, x_phase, FORM.x_stages)
    if ONE_SUM:
        total = product
    else:
        total += product * gl.expand_dims(scales[(PLANES - 1) // FORM.run], 1)
    return total, slot, phase, x_slot, x_phase


@gluon.jit
def packed_sum(rings, zero, columns, start, first, last, FORM: gl.constexpr, PART: gl.constexpr,
               LAYOUT: gl.constexpr):  # fmt: skip
    """Return the sum over some steps [64, m].

    Where the last step has a form of its own, all sums before have had as many steps.
    """
    CODES: gl.constexpr = gl.DotOperandLayout(0, LAYOUT, 2)
    IS_SHORT: gl.constexpr = 1 if FORM.tail > 0 else 0
    total = gl.full([GROUP, FORM.m], 0.0, gl.float32, LAYOUT)
    same = (gl.full([GROUP], FORM.middle, gl.float32, gl.SliceLayout(1, CODES)),)
    if zero is not None and FORM.per_group == 0:
        own = gl.convert_layout(columns, gl.SliceLayout(1, CODES))
        same = (gl.load(zero + own).to(gl.float32),)
    slot, phase = start % FORM.stages, start // FORM.stages & 1
    x_turn = start * FORM.x_turns
    if FORM.skipped > 0:
        x_turn -= start // (last - first) * FORM.skipped
    x_slot, x_phase = x_turn % FORM.x_stages, x_turn // FORM.x_stages & 1
    for step in range(first, last - IS_SHORT):
        total, slot, phase, x_slot, x_phase = add_step(
            total, same, rings, zero, start + step - first, (slot, phase, x_slot, x_phase),
            FORM.planes, FORM, PART, LAYOUT,
        )  # fmt: skip
    if IS_SHORT > 0:
        turn = start + last - first - 1
        total, slot, phase, x_slot, x_phase = add_step(
            total, same, rings, zero, turn, (slot, phase, x_slot, x_phase), FORM.tail, FORM, PART,
            LAYOUT,
        )  # fmt: skip
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
            finish(total, out, bias, top, left, m, first_row, n, stride_out, FORM.m, LAYOUT, None,
                   True)  # fmt: skip
        start += last - first


@gluon.jit
def barriers(STAGES: gl.constexpr, ARRIVALS: gl.constexpr, RELEASES: gl.constexpr):
    """Return barriers that say that slots are filled, and that they are free."""
    ready = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    free = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for slot in gl.static_range(STAGES):
        mbarrier.init(ready.index(slot), count=ARRIVALS)
        mbarrier.init(free.index(slot), count=RELEASES)
    return ready, free


@gluon.jit
def rings_of(words, x, scale, zero, FORM: gl.constexpr):
    """Return the slots that are filled in turn, and the barriers that say so."""
    words_buffer = gl.allocate_shared_memory(
        words.dtype, [FORM.stages * FORM.groups, GROUP, FORM.plane], words.layout
    )
    x_buffer = gl.allocate_shared_memory(
        x.dtype, [FORM.x_stages, FORM.m, FORM.taken * FORM.plane], x.layout
    )
    # Words arrive by the copy engine, scales by the threads of a warp.
    ARRIVALS: gl.constexpr = 1 + WARP if FORM.per_group > 0 or FORM.pieces > 0 else 1
    RELEASES: gl.constexpr = FORM.groups * (4 * WARP if FORM.apart else 1)
    words_ready, words_free = barriers(FORM.stages, ARRIVALS, RELEASES)
    x_ready, x_free = barriers(FORM.x_stages, 1, RELEASES)
    scale_buffer, zero_buffer = x_buffer, x_buffer
    if FORM.per_group > 0:
        scale_buffer = room_for_factors(scale, FORM)
        if zero is not None:
            zero_buffer = room_for_factors(zero, FORM)
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
    rings = rings_of(words, x, scale, zero, FORM)
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
