"""Products of experts with sorted fp8 codes in blocks, by warps with roles (``block_kernel``).

A tile's rows are those of one expert in the plan of a routing (``quantdock_triton.route_kernel``);
tiles that are left over stand last there, and are passed by. So a program's items of work fill all
slots in turn, and which ones follows from the number of the item: Triton 3.6 takes a count that is
carried from item to item for a constant where a loop starts at it. Weights are the rows [E * N, K]
of all experts.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier

from quantdock_cuda.block_kernel import (
    GROUP,
    PRODUCER_REGISTERS,
    let_kernel_after_start,
    room_for_slots,
    room_for_sums,
    scaled_sum,
    sum_of_groups,
)
from quantdock_cuda.block_operands import (
    STEP,
    copy_codes,
    slots_of,
    start_reading,
    wait_for_kernel_before,
)
from quantdock_cuda.block_result import with_bias


@gluon.jit
def place_of(number, plan, sizes, TILE: gl.constexpr):
    """Return the expert of an item of work (-1: none), its first row, its expert's end, and column.

    Columns of one tile of the plan follow each other. number: of the items that a program has.
    """
    _, n, _, num_tiles, _ = sizes
    item = gl.program_id(0) + number * gl.num_programs(0)
    across = gl.cdiv(n, TILE.n)
    tile, left = item // across, item % across * TILE.n
    expert = gl.load(plan + tile)
    top, end = gl.load(plan + num_tiles + tile), gl.load(plan + 2 * num_tiles + tile)
    return expert, top, end, left


@gluon.jit
def items_of(sizes):
    """Return how many items of work this program has."""
    return gl.cdiv(sizes[4] - gl.program_id(0), gl.num_programs(0))


@gluon.jit
def read_scales(slots, scales, slot, top, left, expert, step, sizes, TILE: gl.constexpr,
                WEIGHT_ROWS: gl.constexpr):  # fmt: skip
    """Start reading the scales of a slot's steps; those of steps beyond the last are 0."""
    STEPS: gl.constexpr = TILE.k // STEP
    _, _, a_scales, b_scales, ready, _ = slots
    a_scale, a_scale_group, b_scale, scale_expert, scale_row = scales
    num_rows, _, steps, _, _ = sizes
    rows = top + gl.arange(0, TILE.m, layout=gl.BlockedLayout([1], [32], [1], [0]))
    one = gl.arange(0, 1, layout=gl.BlockedLayout([1], [32], [1], [0]))
    b_place = b_scale + expert * scale_expert + left // WEIGHT_ROWS * scale_row + one
    for number in gl.static_range(STEPS):
        inside = step + number < steps
        start_reading(a_scales.index(slot * STEPS + number),
                      a_scale + rows + (step + number) * a_scale_group,
                      mask=(rows < num_rows) & inside)  # fmt: skip
        start_reading(b_scales.index(slot * STEPS + number), b_place + step + number,
                      mask=(one < 1) & inside)  # fmt: skip
    async_copy.mbarrier_arrive(ready.index(slot))


@gluon.jit
def produce(a, b, slots, scales, plan, sizes, TILE: gl.constexpr, WEIGHT_ROWS: gl.constexpr):
    """Copy the operands of one slot after the other, as soon as it is free."""
    STEPS: gl.constexpr = TILE.k // STEP
    NUM_BYTES: gl.constexpr = (a.block_type.nbytes + b.block_type.nbytes) * STEPS
    a_buffer, b_buffer, _, _, ready, free = slots
    _, n, steps, _, _ = sizes
    num_slots = slots_of(0, steps, TILE)
    wait_for_kernel_before()
    for number in range(items_of(sizes)):
        expert, top, _, left = place_of(number, plan, sizes, TILE)
        if expert >= 0:
            for turn in range(num_slots):
                count, step = number * num_slots + turn, turn * STEPS
                slot = count % TILE.stages
                bar = ready.index(slot)
                mbarrier.wait(free.index(slot), (count // TILE.stages & 1) ^ 1)
                mbarrier.expect(bar, NUM_BYTES)
                copy_codes(b, expert * n + left, step, b_buffer, slot, bar, TILE)
                # Before x, whose bytes complete the slot: it is not complete without scales.
                read_scales(slots, scales, slot, top, left, expert, step, sizes, TILE, WEIGHT_ROWS)
                copy_codes(a, top, step, a_buffer, slot, bar, TILE)


@gluon.jit
def store(result, out, order, top, end, left, n, ROWS: gl.constexpr, COLUMNS: gl.constexpr,
          SCATTERS: gl.constexpr):  # fmt: skip
    """Round once and store the rows up to ``end``, 16 bytes a thread."""
    STORE: gl.constexpr = gl.BlockedLayout([1, 8], [256 // COLUMNS, COLUMNS // 8], [4, 1], [1, 0])
    result = gl.convert_layout(result.to(out.dtype.element_ty), STORE)
    rows = top + gl.arange(0, ROWS, layout=gl.SliceLayout(1, STORE))
    columns = gl.expand_dims(left + gl.arange(0, COLUMNS, layout=gl.SliceLayout(0, STORE)), 0)
    has_row, places = rows < end, rows
    if SCATTERS:
        places = gl.load(order + rows, mask=has_row, other=0)
    at = out + gl.expand_dims(places, 1).to(gl.int64) * n + columns
    gl.store(at, result, mask=gl.expand_dims(has_row, 1) & (columns < n))


@gluon.jit
def consume(slots, sums, result, plan, sizes, TILE: gl.constexpr, HAS_BIAS: gl.constexpr,
            SCATTERS: gl.constexpr, NUMBER: gl.constexpr):  # fmt: skip
    """Compute 64 rows of the left operand of tiles, or some steps of their sums, by four warps."""
    ROWS: gl.constexpr = NUMBER // TILE.slices
    TURN: gl.constexpr = NUMBER % TILE.slices
    WIDTH: gl.constexpr = TILE.m if TILE.swap else TILE.n
    LAYOUT: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, WIDTH, 32]
    )
    out, order, bias = result
    _, n, steps, _, _ = sizes
    num_slots = slots_of(0, steps, TILE)
    wait_for_kernel_before()
    let_kernel_after_start()
    for number in range(items_of(sizes)):
        expert, top, end, left = place_of(number, plan, sizes, TILE)
        if expert >= 0:
            if TILE.swap:
                left += GROUP * ROWS
            else:
                top += GROUP * ROWS
            total = scaled_sum(slots, number * num_slots, 0, steps, TILE, ROWS, TURN, LAYOUT)
            if TILE.slices > 1:
                total = sum_of_groups(total, sums, number, TILE, ROWS, TURN, LAYOUT)
            if TURN == 0:
                found = gl.permute(total, (1, 0)) if TILE.swap else total
                COLUMNS: gl.constexpr = GROUP if TILE.swap else TILE.n
                own = bias
                if HAS_BIAS:
                    own += expert * n
                found = with_bias(found, own, left, n, COLUMNS, HAS_BIAS)
                store(found, out, order, top, end, left, n, TILE.m if TILE.swap else GROUP, COLUMNS,
                      SCATTERS)  # fmt: skip


@gluon.jit(do_not_specialize=["num_rows", "steps", "num_tiles", "num_items", "a_scale_group",
                              "scale_expert", "scale_row"])  # fmt: skip
def expert_blocks(a, b, out, a_scale, b_scale, bias, plan, order, num_rows, n, steps, num_tiles,
                  num_items, a_scale_group, scale_expert, scale_row, TILE: gl.constexpr,
                  WEIGHT_ROWS: gl.constexpr, HAS_BIAS: gl.constexpr, SCATTERS: gl.constexpr,
                  REGISTERS: gl.constexpr):  # fmt: skip
    """Compute rows of ``out`` [pairs, N] from descriptors of sorted codes and of weights [*, K].

    SCATTERS: rows go where ``order`` says. Other constants as for ``block_matmul``.
    """
    HEIGHTS: gl.constexpr = (TILE.n if TILE.swap else TILE.m) // GROUP
    slots = room_for_slots(a, b, TILE, HEIGHTS)
    sums = room_for_sums((slots[0], slots[1], slots[4], slots[5]), TILE, HEIGHTS)
    fence_async_shared()
    result = out, order, bias
    scales = a_scale, a_scale_group, b_scale, scale_expert, scale_row
    sizes = num_rows, n, steps, num_tiles, num_items
    if HEIGHTS * TILE.slices == 1:
        gl.warp_specialize([
            (consume, (slots, sums, result, plan, sizes, TILE, HAS_BIAS, SCATTERS, 0)),
            (produce, (a, b, slots, scales, plan, sizes, TILE, WEIGHT_ROWS)),
        ], [1], [PRODUCER_REGISTERS])  # fmt: skip
    else:
        gl.warp_specialize([
            (consume, (slots, sums, result, plan, sizes, TILE, HAS_BIAS, SCATTERS, 0)),
            (consume, (slots, sums, result, plan, sizes, TILE, HAS_BIAS, SCATTERS, 1)),
            (produce, (a, b, slots, scales, plan, sizes, TILE, WEIGHT_ROWS)),
        ], [4, 1], [REGISTERS, PRODUCER_REGISTERS])  # fmt: skip
