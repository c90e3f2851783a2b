"""Products of fp8 codes whose scales change along K, for Hopper's asynchronous tensor cores.

One warp copies operands ahead (``block_operands``); one or two groups of four warps multiply. Such
a group scales and adds up one step's product while its next one runs on the tensor cores, and no
group waits for the other, so the scales cost little. They come with the operands: a multiplying
group that reads them itself waits for the cache. (Plain Triton waits for each product before it
scales it, with all warps at once.) Groups share a tile by rows of its left operand, and by taking
turns at the slots of its sum. Programs stay for further tiles, whose operands are copied while
results are stored, and start while the kernel before ends.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from quantdock_cuda.block_operands import (
    STEP,
    produce,
    slots_of,
    wait_for_kernel_before,
    work_of,
)
from quantdock_cuda.block_operands import (
    start_copy as start_copy,  # for kernels that copy in the same way
)
from quantdock_cuda.block_result import store, store_by_copies, sum_of_parts, with_bias

PRODUCER_REGISTERS = gl.constexpr(24)
GROUP = gl.constexpr(64)  # rows of the left operand that four warps work on


@gluon.jit
def let_kernel_after_start():
    """Let the next kernel's programs start, each as soon as it finds room."""
    gl.inline_asm_elementwise(
        "griddepcontrol.launch_dependents; // dummy $0", "=r", [], dtype=gl.int32, is_pure=False,
        pack=1,
    )  # fmt: skip


@gluon.jit
def start_product(slots, place, TILE: gl.constexpr, ROWS: gl.constexpr, LAYOUT: gl.constexpr):
    """Start the product of a step whose operands are there; return it and its factors."""
    a_buffer, b_buffer, a_scales, b_scales, _, _ = slots
    WIDTH: gl.constexpr = TILE.m if TILE.swap else TILE.n
    FACTORS: gl.constexpr = gl.SliceLayout(0 if TILE.swap else 1, LAYOUT)
    unset = gl.zeros([GROUP, WIDTH], gl.float32, LAYOUT)
    x, weight, a_scale = a_buffer.index(place), b_buffer.index(place), a_scales.index(place)
    if TILE.swap:
        product = warpgroup_mma(weight.slice(GROUP * ROWS, GROUP), x.permute((1, 0)), unset,
                                use_acc=False, is_async=True)  # fmt: skip
    else:
        a_scale = a_scale.slice(GROUP * ROWS, GROUP)
        product = warpgroup_mma(x.slice(GROUP * ROWS, GROUP), weight.permute((1, 0)), unset,
                                use_acc=False, is_async=True)  # fmt: skip
    return product, a_scale.load(FACTORS) * b_scales.index(place).load(FACTORS)


@gluon.jit
def scaled_sum(slots, count, first, last, TILE: gl.constexpr, ROWS: gl.constexpr,
               TURN: gl.constexpr, LAYOUT: gl.constexpr):  # fmt: skip
    """Return the sum of scaled products over the steps of every ``TILE.slices`` th slot from TURN.

    A turn of the loop is two steps; those beyond the last are times 0.
    """
    ready, free = slots[4], slots[5]
    STEPS: gl.constexpr = TILE.k // STEP
    WIDTH: gl.constexpr = TILE.m if TILE.swap else TILE.n
    AXIS: gl.constexpr = 0 if TILE.swap else 1
    total = gl.zeros([GROUP, WIDTH], gl.float32, LAYOUT)
    for turn in range(count + TURN, count + slots_of(first, last, TILE),
                      2 // STEPS * TILE.slices):  # fmt: skip
        slot = turn % TILE.stages
        mbarrier.wait(ready.index(slot), turn // TILE.stages & 1)
        even, even_factor = start_product(slots, slot * STEPS, TILE, ROWS, LAYOUT)
        next_slot, place = slot, slot * STEPS + 1
        if STEPS == 1:
            next_turn = turn + TILE.slices
            next_slot = next_turn % TILE.stages
            place = next_slot
            mbarrier.wait(ready.index(next_slot), next_turn // TILE.stages & 1)
        odd, odd_factor = start_product(slots, place, TILE, ROWS, LAYOUT)
        product = warpgroup_mma_wait(1, deps=[even])
        if STEPS == 1:
            mbarrier.arrive(free.index(slot), count=1)
        total += product * gl.expand_dims(even_factor, AXIS)
        # With ``total`` among them, so that the sum above is done while the odd product runs.
        product, total = warpgroup_mma_wait(0, deps=[odd, total])
        mbarrier.arrive(free.index(next_slot), count=1)
        total += product * gl.expand_dims(odd_factor, AXIS)
    return total


@gluon.jit
def sum_of_groups(total, sums, number, TILE: gl.constexpr, ROWS: gl.constexpr,
                  TURN: gl.constexpr, LAYOUT: gl.constexpr):  # fmt: skip
    """Hand this group's sum to the first one of its rows, or return the sum of all, if it is.

    number: how many items of work the program has done before.
    """
    buffer, written, read = sums
    OTHERS: gl.constexpr = TILE.slices - 1
    if TURN > 0:
        mbarrier.wait(read.index(ROWS), (number & 1) ^ 1)
        buffer.index(ROWS * OTHERS + TURN - 1).store(total)
        mbarrier.arrive(written.index(ROWS), count=1)
    else:
        mbarrier.wait(written.index(ROWS), number & 1)
        for other in gl.static_range(OTHERS):
            total += buffer.index(ROWS * OTHERS + other).load(LAYOUT)
        mbarrier.arrive(read.index(ROWS), count=1)
    return total


@gluon.jit
def finish(total, result, sizes, tile, part, top, left, TILE: gl.constexpr, HAS_BIAS: gl.constexpr,
           SPLIT: gl.constexpr, COPIES: gl.constexpr, ROWS: gl.constexpr,
           LAYOUT: gl.constexpr):  # fmt: skip
    """Add the other parts of a sum and the bias, and store; of parts the last to arrive does so."""
    out, out_buffer, bias, partial, counters = result
    m, n, _, parts, _ = sizes
    WIDTH: gl.constexpr = TILE.m if TILE.swap else TILE.n
    COLUMNS: gl.constexpr = GROUP if TILE.swap else TILE.n
    HEIGHTS: gl.constexpr = (TILE.n if TILE.swap else TILE.m) // GROUP
    is_last = True
    if SPLIT:
        total, is_last = sum_of_parts(total, partial, counters, tile * HEIGHTS + ROWS, part, parts,
                                      GROUP, WIDTH, LAYOUT)  # fmt: skip
    if is_last:
        found = gl.permute(total, (1, 0)) if TILE.swap else total
        found = with_bias(found, bias, left, n, COLUMNS, HAS_BIAS)
        if COPIES:
            store_by_copies(found, out, out_buffer.index(ROWS), top, left)
        else:
            store(found, out, top, left, m, n, TILE.m if TILE.swap else GROUP, COLUMNS)


@gluon.jit
def consume(slots, sums, result, sizes, TILE: gl.constexpr, HAS_BIAS: gl.constexpr,
            SPLIT: gl.constexpr, COPIES: gl.constexpr, NUMBER: gl.constexpr):  # fmt: skip
    """Compute 64 rows of the left operand of tiles, or some steps of their sums, by four warps."""
    ROWS: gl.constexpr = NUMBER // TILE.slices
    TURN: gl.constexpr = NUMBER % TILE.slices
    WIDTH: gl.constexpr = TILE.m if TILE.swap else TILE.n
    LAYOUT: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, WIDTH, 32]
    )
    wait_for_kernel_before()
    let_kernel_after_start()
    for item in range(gl.program_id(0), sizes[4], gl.num_programs(0)):
        # What this program has done before are whole tiles: where sums have parts, each program has
        # one. (A number carried from one turn of this loop to the next, Triton 3.6 takes for a
        # constant where a loop inside starts at it.)
        number = item // gl.num_programs(0)
        count = number * slots_of(0, sizes[2], TILE)
        tile, part, top, left, first, last = work_of(item, sizes, TILE, SPLIT)
        if TILE.swap:
            left += GROUP * ROWS
        else:
            top += GROUP * ROWS
        total = scaled_sum(slots, count, first, last, TILE, ROWS, TURN, LAYOUT)
        if TILE.slices > 1:
            total = sum_of_groups(total, sums, number, TILE, ROWS, TURN, LAYOUT)
        if TURN == 0:
            finish(total, result, sizes, tile, part, top, left, TILE, HAS_BIAS, SPLIT, COPIES, ROWS,
                   LAYOUT)  # fmt: skip
    if COPIES and TURN == 0:
        tma.store_wait(0)


@gluon.jit
def room_for_slots(a, b, TILE: gl.constexpr, HEIGHTS: gl.constexpr):
    """Return where operands of some steps and their scales lie, and barriers: ready, and free."""
    STAGES: gl.constexpr = TILE.stages
    LIST: gl.constexpr = mbarrier.MBarrierLayout()
    PLACES: gl.constexpr = STAGES * (TILE.k // STEP)
    SIDE_BY_SIDE: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    a_buffer = gl.allocate_shared_memory(a.dtype, [PLACES, TILE.m, STEP], a.layout)
    b_buffer = gl.allocate_shared_memory(b.dtype, [PLACES, TILE.n, STEP], b.layout)
    a_scales = gl.allocate_shared_memory(gl.float32, [PLACES, TILE.m], SIDE_BY_SIDE)
    b_scales = gl.allocate_shared_memory(gl.float32, [PLACES, 1], SIDE_BY_SIDE)
    ready = gl.allocate_shared_memory(gl.int64, [STAGES, 1], LIST)
    free = gl.allocate_shared_memory(gl.int64, [STAGES, 1], LIST)
    for slot in gl.static_range(STAGES):
        mbarrier.init(ready.index(slot), count=1)
        mbarrier.init(free.index(slot), count=HEIGHTS)
    return a_buffer, b_buffer, a_scales, b_scales, ready, free


@gluon.jit
def room_for_sums(slots, TILE: gl.constexpr, HEIGHTS: gl.constexpr):
    """Return where groups hand over their sums, and barriers: a sum is written, it was read."""
    WIDTH: gl.constexpr = TILE.m if TILE.swap else TILE.n
    OTHERS: gl.constexpr = TILE.slices - 1
    LIST: gl.constexpr = mbarrier.MBarrierLayout()
    SUM: gl.constexpr = gl.SwizzledSharedLayout(4, 1, 8, [1, 0])
    buffer, written, read = slots[0], slots[2], slots[3]
    if OTHERS > 0:
        buffer = gl.allocate_shared_memory(gl.float32, [HEIGHTS * OTHERS, GROUP, WIDTH], SUM)
        written = gl.allocate_shared_memory(gl.int64, [HEIGHTS, 1], LIST)
        read = gl.allocate_shared_memory(gl.int64, [HEIGHTS, 1], LIST)
        for row in gl.static_range(HEIGHTS):
            mbarrier.init(written.index(row), count=OTHERS)
            mbarrier.init(read.index(row), count=1)
    return buffer, written, read


@gluon.jit(do_not_specialize=["m", "steps", "quads", "b_scale_row", "parts", "num_items"])
def block_matmul(a, b, out, a_scale, b_scale, bias, partial, counters, m, n, steps, quads,
                 b_scale_row, parts, num_items, TILE: gl.constexpr, WEIGHT_ROWS: gl.constexpr,
                 HAS_BIAS: gl.constexpr, SPLIT: gl.constexpr, COPIES: gl.constexpr,
                 REGISTERS: gl.constexpr):  # fmt: skip
    """Compute ``out`` [M, N] from descriptors of codes [*, K], in ``num_items`` tiles, or parts of
    their sums, of which each program has one.

    TILE: as in ``quantdock_triton.tile``. WEIGHT_ROWS: rows of the weight that share a row of its
    scales; a multiple of the tile's. COPIES: ``out`` is a descriptor too; without ``swap``.
    """
    HEIGHTS: gl.constexpr = (TILE.n if TILE.swap else TILE.m) // GROUP
    slots = room_for_slots(a, b, TILE, HEIGHTS)
    sums = room_for_sums((slots[0], slots[1], slots[4], slots[5]), TILE, HEIGHTS)
    out_buffer = slots[0]
    if COPIES:
        out_buffer = gl.allocate_shared_memory(
            out.dtype, [HEIGHTS, GROUP, out.block_type.shape[1]], out.layout
        )
    fence_async_shared()
    result = out, out_buffer, bias, partial, counters
    scales = a_scale, quads, b_scale, b_scale_row
    sizes = m, n, steps, parts, num_items
    if HEIGHTS * TILE.slices == 1:
        gl.warp_specialize([
            (consume, (slots, sums, result, sizes, TILE, HAS_BIAS, SPLIT, COPIES, 0)),
            (produce, (a, b, slots, scales, sizes, TILE, WEIGHT_ROWS, SPLIT)),
        ], [1], [PRODUCER_REGISTERS])  # fmt: skip
    else:
        gl.warp_specialize([
            (consume, (slots, sums, result, sizes, TILE, HAS_BIAS, SPLIT, COPIES, 0)),
            (consume, (slots, sums, result, sizes, TILE, HAS_BIAS, SPLIT, COPIES, 1)),
            (produce, (a, b, slots, scales, sizes, TILE, WEIGHT_ROWS, SPLIT)),
        ], [4, 1], [REGISTERS, PRODUCER_REGISTERS])  # fmt: skip
