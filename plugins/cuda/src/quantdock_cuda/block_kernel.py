"""Products of fp8 codes whose scales change along K, for Hopper's asynchronous tensor cores.

One warp copies operands ahead; one or two groups of four warps multiply. Such a group scales
and adds up one step's product while its next one runs on the tensor cores, and no group waits for
the other, so the scales cost little. (Plain Triton waits for each product before it scales it, with
all warps at once.) Groups share a tile by rows of its left operand, and by taking turns at the
steps of its sum. Programs stay for further tiles, whose operands are copied while results are
stored, and start while the kernel before ends.
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

from quantdock_cuda.block_result import store, store_by_copy, sum_of_parts, with_bias

# The second name is that of Triton 3.6.
start_copy = tma.async_load if hasattr(tma, "async_load") else tma.async_copy_global_to_shared
STEP = gl.constexpr(128)  # columns that share a scale
PRODUCER_REGISTERS = gl.constexpr(24)
GROUP = gl.constexpr(64)  # rows of the left operand that four warps work on


@gluon.jit
def wait_for_kernel_before():
    """Wait until the kernel before this one is done; until then it may still write x."""
    gl.inline_asm_elementwise(
        "griddepcontrol.wait; // dummy $0", "=r", [], dtype=gl.int32, is_pure=False, pack=1
    )


@gluon.jit
def let_kernel_after_start():
    """Let the next kernel's programs start, each as soon as it finds room."""
    gl.inline_asm_elementwise(
        "griddepcontrol.launch_dependents; // dummy $0", "=r", [], dtype=gl.int32, is_pure=False,
        pack=1,
    )  # fmt: skip


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
def produce(a, b, slots, sizes, TILE: gl.constexpr, SPLIT: gl.constexpr):
    """Copy the operands of one step after the other into the slots that are free.

    Weights of the first steps are asked for before the kernel that writes x is done.
    """
    NUM_BYTES: gl.constexpr = a.block_type.nbytes + b.block_type.nbytes
    ROUND: gl.constexpr = 2 * TILE.slices
    a_buffer, b_buffer, ready, free = slots
    num_items = sizes[4]
    _, _, top, left, first, last = work_of(gl.program_id(0), sizes, TILE, SPLIT)
    ahead = gl.minimum(gl.cdiv(last - first, ROUND) * ROUND, TILE.stages)
    for turn in range(ahead):
        mbarrier.expect(ready.index(turn), NUM_BYTES)
        start_copy(b, [left, (first + turn) * STEP], ready.index(turn), b_buffer.index(turn))
    wait_for_kernel_before()
    count = 0
    for item in range(gl.program_id(0), num_items, gl.num_programs(0)):
        _, _, top, left, first, last = work_of(item, sizes, TILE, SPLIT)
        for turn in range(gl.cdiv(last - first, ROUND) * ROUND):
            slot = count % TILE.stages
            bar = ready.index(slot)
            start = (first + turn) * STEP
            if count >= ahead:
                mbarrier.wait(free.index(slot), (count // TILE.stages & 1) ^ 1)
                mbarrier.expect(bar, NUM_BYTES)
                start_copy(b, [left, start], bar, b_buffer.index(slot))
            start_copy(a, [top, start], bar, a_buffer.index(slot))
            count += 1


@gluon.jit
def start_product(slots, turn, TILE: gl.constexpr, ROWS: gl.constexpr, LAYOUT: gl.constexpr):
    """Wait for a step's operands and start their product; return it and its slot."""
    a_buffer, b_buffer, ready, _ = slots
    WIDTH: gl.constexpr = TILE.m if TILE.swap else TILE.n
    slot = turn % TILE.stages
    mbarrier.wait(ready.index(slot), turn // TILE.stages & 1)
    unset = gl.zeros([GROUP, WIDTH], gl.float32, LAYOUT)
    x, weight = a_buffer.index(slot), b_buffer.index(slot)
    if TILE.swap:
        product = warpgroup_mma(weight.slice(GROUP * ROWS, GROUP), x.permute((1, 0)), unset,
                                use_acc=False, is_async=True)  # fmt: skip
    else:
        product = warpgroup_mma(x.slice(GROUP * ROWS, GROUP), weight.permute((1, 0)), unset,
                                use_acc=False, is_async=True)  # fmt: skip
    return product, slot


@gluon.jit
def scales_of(places, step, last):
    """Return the scales of a step; 0 of a step beyond the last."""
    a_place, a_scale_group, b_place = places
    inside = step < last
    a_scale = gl.load(a_place + step * a_scale_group, mask=inside, other=0.0)
    return a_scale, gl.load(b_place + step, mask=inside, other=0.0)


@gluon.jit
def scaled_sum(slots, places, count, first, last, TILE: gl.constexpr, ROWS: gl.constexpr,
               TURN: gl.constexpr, LAYOUT: gl.constexpr):  # fmt: skip
    """Return the sum over steps, every ``TILE.slices`` th from TURN, of scaled products.

    An odd one out is followed by one times 0. Scales are asked for a turn of the loop before they
    are multiplied, even with one another: until they arrive takes as long as a turn.
    """
    free = slots[3]
    NEXT: gl.constexpr = TILE.slices
    WIDTH: gl.constexpr = TILE.m if TILE.swap else TILE.n
    AXIS: gl.constexpr = 0 if TILE.swap else 1
    total = gl.zeros([GROUP, WIDTH], gl.float32, LAYOUT)
    a_even, b_even = scales_of(places, first + TURN, last)
    a_odd, b_odd = scales_of(places, first + TURN + NEXT, last)
    for turn in range(TURN, gl.cdiv(last - first, 2 * NEXT) * (2 * NEXT), 2 * NEXT):
        even, slot = start_product(slots, count + turn, TILE, ROWS, LAYOUT)
        odd, next_slot = start_product(slots, count + turn + NEXT, TILE, ROWS, LAYOUT)
        even_factor, odd_factor = a_even * b_even, a_odd * b_odd
        a_even, b_even = scales_of(places, first + turn + 2 * NEXT, last)
        a_odd, b_odd = scales_of(places, first + turn + 3 * NEXT, last)
        product = warpgroup_mma_wait(1, deps=[even])
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
            store_by_copy(found, out, out_buffer.index(ROWS), top, left)
        else:
            store(found, out, top, left, m, n, TILE.m if TILE.swap else GROUP, COLUMNS)


@gluon.jit
def consume(slots, sums, result, scales, sizes, TILE: gl.constexpr, WEIGHT_ROWS: gl.constexpr,
            HAS_BIAS: gl.constexpr, SPLIT: gl.constexpr, COPIES: gl.constexpr,
            NUMBER: gl.constexpr):  # fmt: skip
    """Compute 64 rows of the left operand of tiles, or some steps of their sums, by four warps."""
    a_scale, a_scale_group, b_scale, b_scale_row = scales
    m, num_items = sizes[0], sizes[4]
    WIDTH: gl.constexpr = TILE.m if TILE.swap else TILE.n
    ROWS: gl.constexpr = NUMBER // TILE.slices
    TURN: gl.constexpr = NUMBER % TILE.slices
    LAYOUT: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, WIDTH, 32]
    )
    wait_for_kernel_before()
    let_kernel_after_start()
    count = 0
    for item in range(gl.program_id(0), num_items, gl.num_programs(0)):
        tile, part, top, left, first, last = work_of(item, sizes, TILE, SPLIT)
        b_place = b_scale + left // WEIGHT_ROWS * b_scale_row
        if TILE.swap:
            left += GROUP * ROWS
            rows = top + gl.arange(0, TILE.m, layout=gl.SliceLayout(0, LAYOUT))
        else:
            top += GROUP * ROWS
            rows = top + gl.arange(0, GROUP, layout=gl.SliceLayout(1, LAYOUT))
        places = a_scale + gl.minimum(rows, m - 1), a_scale_group, b_place
        total = scaled_sum(slots, places, count, first, last, TILE, ROWS, TURN, LAYOUT)
        if TILE.slices > 1:
            number = item // gl.num_programs(0)
            total = sum_of_groups(total, sums, number, TILE, ROWS, TURN, LAYOUT)
        if TURN == 0:
            finish(total, result, sizes, tile, part, top, left, TILE, HAS_BIAS, SPLIT, COPIES, ROWS,
                   LAYOUT)  # fmt: skip
        count += gl.cdiv(last - first, 2 * TILE.slices) * (2 * TILE.slices)
    if COPIES and TURN == 0:
        tma.store_wait(0)


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


@gluon.jit(do_not_specialize=["m", "steps", "a_scale_group", "b_scale_row", "parts", "num_items"])
def block_matmul(a, b, out, a_scale, b_scale, bias, partial, counters, m, n, steps, a_scale_group,
                 b_scale_row, parts, num_items, TILE: gl.constexpr, WEIGHT_ROWS: gl.constexpr,
                 HAS_BIAS: gl.constexpr, SPLIT: gl.constexpr, COPIES: gl.constexpr,
                 REGISTERS: gl.constexpr):  # fmt: skip
    """Compute ``out`` [M, N] from descriptors of codes [*, K], in ``num_items`` tiles or parts.

    TILE: as in ``quantdock_triton.tile``. WEIGHT_ROWS: rows of the weight that share a row of its
    scales; a multiple of the tile's. COPIES: ``out`` is a descriptor too; without ``swap``.
    """
    HEIGHTS: gl.constexpr = (TILE.n if TILE.swap else TILE.m) // GROUP
    STAGES: gl.constexpr = TILE.stages
    LIST: gl.constexpr = mbarrier.MBarrierLayout()
    a_buffer = gl.allocate_shared_memory(a.dtype, [STAGES, TILE.m, STEP], a.layout)
    b_buffer = gl.allocate_shared_memory(b.dtype, [STAGES, TILE.n, STEP], b.layout)
    ready = gl.allocate_shared_memory(gl.int64, [STAGES, 1], LIST)
    free = gl.allocate_shared_memory(gl.int64, [STAGES, 1], LIST)
    for slot in gl.static_range(STAGES):
        mbarrier.init(ready.index(slot), count=1)
        mbarrier.init(free.index(slot), count=HEIGHTS)
    slots, out_buffer = (a_buffer, b_buffer, ready, free), a_buffer
    sums = room_for_sums(slots, TILE, HEIGHTS)
    if COPIES:
        out_buffer = gl.allocate_shared_memory(out.dtype, [HEIGHTS, GROUP, TILE.n], out.layout)
    fence_async_shared()
    result = out, out_buffer, bias, partial, counters
    scales = a_scale, a_scale_group, b_scale, b_scale_row
    sizes = m, n, steps, parts, num_items
    if HEIGHTS * TILE.slices == 1:
        gl.warp_specialize([
            (consume, (slots, sums, result, scales, sizes, TILE, WEIGHT_ROWS, HAS_BIAS, SPLIT,
                       COPIES, 0)),
            (produce, (a, b, slots, sizes, TILE, SPLIT)),
        ], [1], [PRODUCER_REGISTERS])  # fmt: skip
    else:
        gl.warp_specialize([
            (consume, (slots, sums, result, scales, sizes, TILE, WEIGHT_ROWS, HAS_BIAS, SPLIT,
                       COPIES, 0)),
            (consume, (slots, sums, result, scales, sizes, TILE, WEIGHT_ROWS, HAS_BIAS, SPLIT,
                       COPIES, 1)),
            (produce, (a, b, slots, sizes, TILE, SPLIT)),
        ], [4, 1], [REGISTERS, PRODUCER_REGISTERS])  # fmt: skip
