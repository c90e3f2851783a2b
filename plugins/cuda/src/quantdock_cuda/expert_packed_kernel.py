"""Products of experts with packed codes, by warps with roles (``packed_kernel``).

A tile's rows are those of one expert in the plan of a routing (``quantdock_triton.route_kernel``);
tiles that are left over stand last there. So a program's items of work fill all slots in turn, and
which ones follows from the number of the item. Where pairs are not sorted, each is a tile, and each
item has a program: one of no expert has nothing to fill.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier

from quantdock_cuda.block_kernel import let_kernel_after_start
from quantdock_cuda.block_operands import wait_for_kernel_before
from quantdock_cuda.packed_copies import copy_words, copy_x
from quantdock_cuda.packed_factors import places_of
from quantdock_cuda.packed_kernel import (
    MORE_REGISTERS,
    PRODUCER_REGISTERS,
    packed_sum,
    rings_of,
)
from quantdock_cuda.packed_result import finish, scaled
from quantdock_cuda.packed_units import GROUP


@gluon.jit
def items_of(plan, sizes, FORM: gl.constexpr, DIRECT: gl.constexpr):
    """Return how many items of work this program has."""
    tiles, _, n, _, _ = sizes
    if not DIRECT:
        tiles = gl.load(plan + 3 * tiles + 1)
    num_items = tiles * gl.cdiv(n, FORM.groups * GROUP)
    return gl.cdiv(num_items - gl.program_id(0), gl.num_programs(0))


@gluon.jit
def place_of(number, plan, sizes, FORM: gl.constexpr, DIRECT: gl.constexpr,
             GATHERS: gl.constexpr):  # fmt: skip
    """Return the expert of an item of work (-1: none), its first row of x and of the result, the
    row after its last, and its first row of the weight.

    Items of one tile of the plan follow each other. number: of the items that a program has.
    """
    num_tiles, num_experts, n, _, top_k = sizes
    item = gl.program_id(0) + number * gl.num_programs(0)
    across = gl.cdiv(n, FORM.groups * GROUP)
    tile, left = item // across, item % across * (FORM.groups * GROUP)
    expert = gl.load(plan + tile)
    if DIRECT:
        expert = gl.where(expert < num_experts, expert, -1).to(gl.int32)
        row, top, end = tile // top_k if GATHERS else tile, tile, tile + 1
    else:
        top, end = gl.load(plan + num_tiles + tile), gl.load(plan + 2 * num_tiles + tile)
        row = top
    return expert, row, top, end, left


@gluon.jit
def produce(words, x, given, rings, plan, sizes, FORM: gl.constexpr, DIRECT: gl.constexpr,
            GATHERS: gl.constexpr):  # fmt: skip
    """Copy the words and the x of one step after the other into the slots that are free.

    Words of the first steps are asked for before the kernel that writes x is done: it has itself
    waited for what wrote the plan, unless that are the ids that the layer was given.
    """
    words_free = rings[2]
    _, _, groups, strides, _ = given
    _, _, n, steps, _ = sizes
    if DIRECT and GATHERS:
        wait_for_kernel_before()
    expert, _, _, _, left = place_of(0, plan, sizes, FORM, DIRECT, GATHERS)
    ahead = gl.where(expert >= 0, gl.minimum(steps, FORM.stages), 0)
    first = gl.maximum(expert, 0)
    places = places_of(given, left, n, FORM, first.to(gl.int64) * groups * strides[0])
    for turn in range(ahead):
        copy_words(words, given, places, rings, left, turn, turn, sizes, FORM,
                   first * gl.cdiv(n, GROUP))  # fmt: skip
    if not (DIRECT and GATHERS):
        wait_for_kernel_before()
    for number in range(items_of(plan, sizes, FORM, DIRECT)):
        expert, row, _, _, left = place_of(number, plan, sizes, FORM, DIRECT, GATHERS)
        if expert >= 0:
            begin = expert.to(gl.int64) * groups * strides[0]
            places = places_of(given, left, n, FORM, begin)
            origin = expert * gl.cdiv(n, GROUP)
            x_turn = number * (steps * FORM.x_turns - FORM.skipped)
            for step in range(steps):
                turn = number * steps + step
                if turn >= ahead:
                    slot = turn % FORM.stages
                    mbarrier.wait(words_free.index(slot), (turn // FORM.stages & 1) ^ 1)
                    copy_words(words, given, places, rings, left, turn, step, sizes, FORM, origin)
                x_at = x_turn + step * FORM.x_turns
                if FORM.skipped == 0:  # noqa: SIM114
                    copy_x(x, rings, row, x_at, step, FORM.x_turns, FORM)
                elif step < steps - 1:
                    copy_x(x, rings, row, x_at, step, FORM.x_turns, FORM)
                else:
                    copy_x(x, rings, row, x_at, step, FORM.x_turns - FORM.skipped, FORM)


@gluon.jit
def multiply(rings, given, result, place, number, sizes, FORM: gl.constexpr, PART: gl.constexpr):
    """Compute 64 rows of the weight, times ``FORM.m`` rows of x, of one item of work."""
    LAYOUT: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, FORM.m, 16]
    )
    out, bias, order = result
    _, zero, groups, strides, _ = given
    _, _, n, steps, _ = sizes
    expert, _, top, end, left = place
    begin = expert.to(gl.int64) * groups * strides[0]
    if zero is not None:
        zero += begin
    if bias is not None:
        bias += expert * n
    left += PART * GROUP
    columns = left + gl.arange(0, GROUP, layout=gl.SliceLayout(1, LAYOUT))
    columns = gl.minimum(columns, n - 1)
    total = packed_sum(rings, zero, columns, number * steps, 0, steps, FORM, PART, LAYOUT)
    total = scaled(total, given, columns, FORM, begin)
    finish(total, out, bias, top, left, end, 0, n, n, FORM.m, LAYOUT, order)


@gluon.jit
def consume(rings, given, result, plan, sizes, FORM: gl.constexpr, HALF: gl.constexpr,
            DIRECT: gl.constexpr, GATHERS: gl.constexpr, PART: gl.constexpr):  # fmt: skip
    """Compute 64 rows of the weight of one item of work after the other, by four warps.

    Items of no more rows of x than HALF is for are multiplied with so many.
    """
    wait_for_kernel_before()
    let_kernel_after_start()
    for number in range(items_of(plan, sizes, FORM, DIRECT)):
        place = place_of(number, plan, sizes, FORM, DIRECT, GATHERS)
        if place[0] >= 0:
            if HALF is None:  # noqa: SIM114
                multiply(rings, given, result, place, number, sizes, FORM, PART)
            elif place[3] - place[2] > HALF.m:
                multiply(rings, given, result, place, number, sizes, FORM, PART)
            else:
                multiply(rings, given, result, place, number, sizes, HALF, PART)


@gluon.jit(do_not_specialize=["num_tiles", "num_experts", "steps", "top_k", "groups",
                              "stride_scale", "stride_row"])  # fmt: skip
def packed_experts(words, x, scale, zero, stored, bias, out, plan, order, num_tiles, num_experts, n,
                   steps, top_k, groups, stride_scale, stride_row, FORM: gl.constexpr,
                   HALF: gl.constexpr, REGISTERS: gl.constexpr, DIRECT: gl.constexpr,
                   GATHERS: gl.constexpr):  # fmt: skip
    """Compute rows of ``out`` [pairs, N] from descriptors of all experts' words and of x.

    Rows go where ``order`` says, if there is one. DIRECT: the plan is the ids of experts, and each
    pair a tile. GATHERS: x has a row for each token then; else x has the rows of the plan. HALF:
    the form for tiles that have no more than half the rows; or None.
    """
    rings = rings_of(words, x, scale, zero, FORM)
    sizes = (num_tiles, num_experts, n, steps, top_k)
    given = (scale, zero, groups, (stride_scale, stride_row), stored)
    result = (out, bias, order)
    if FORM.groups == 1:
        gl.warp_specialize([
            (consume, (rings, given, result, plan, sizes, FORM, HALF, DIRECT, GATHERS, 0)),
            (produce, (words, x, given, rings, plan, sizes, FORM, DIRECT, GATHERS)),
        ], [1], [PRODUCER_REGISTERS])  # fmt: skip
    elif FORM.groups == 2:
        gl.warp_specialize([
            (consume, (rings, given, result, plan, sizes, FORM, HALF, DIRECT, GATHERS, 0)),
            (consume, (rings, given, result, plan, sizes, FORM, HALF, DIRECT, GATHERS, 1)),
            (produce, (words, x, given, rings, plan, sizes, FORM, DIRECT, GATHERS)),
        ], [4, 1], [REGISTERS, PRODUCER_REGISTERS])  # fmt: skip
    else:
        gl.warp_specialize([
            (consume, (rings, given, result, plan, sizes, FORM, HALF, DIRECT, GATHERS, 0)),
            (consume, (rings, given, result, plan, sizes, FORM, HALF, DIRECT, GATHERS, 1)),
            (consume, (rings, given, result, plan, sizes, FORM, HALF, DIRECT, GATHERS, 2)),
            (produce, (words, x, given, rings, plan, sizes, FORM, DIRECT, GATHERS)),
        ], [4, 4, 1], [REGISTERS, REGISTERS, MORE_REGISTERS])  # fmt: skip
