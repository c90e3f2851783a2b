"""Products of fp8 codes whose scales change along K, for Hopper's asynchronous tensor cores.

One warp copies operands ahead; one or two groups of four warps multiply. Such a group scales and
adds up one step's product while its next one runs on the tensor cores, and no group waits for the
other, so the scales cost little. (Plain Triton waits for each product before it scales it, with all
warps at once.)
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

# The second names are those of Triton 3.6.
barrier = gl.barrier if hasattr(gl, "barrier") else gl.thread_barrier
start_copy = tma.async_load if hasattr(tma, "async_load") else tma.async_copy_global_to_shared
STEP = gl.constexpr(128)  # columns that share a scale
PRODUCER_REGISTERS = gl.constexpr(24)
GROUP = gl.constexpr(64)  # rows of the left operand that four warps work on


@gluon.jit
def place_of(tile, m, n, BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, BAND: gl.constexpr):
    """Return the first row and column of a tile; BAND rows of tiles share weights in cache."""
    grid_m, grid_n = gl.cdiv(m, BLOCK_M), gl.cdiv(n, BLOCK_N)
    first = tile // (BAND * grid_n) * BAND
    height = gl.minimum(grid_m - first, BAND)
    within = tile % (BAND * grid_n)
    return (first + within % height) * BLOCK_M, within // height * BLOCK_N


@gluon.jit
def produce(a, b, a_buffer, b_buffer, ready, free, top, left, first, turns, STAGES: gl.constexpr):
    """Copy the operands of one step after the other into the slots that are free."""
    for turn in range(turns):
        slot = turn % STAGES
        mbarrier.wait(free.index(slot), (turn // STAGES & 1) ^ 1)
        bar = ready.index(slot)
        mbarrier.expect(bar, a.block_type.nbytes + b.block_type.nbytes)
        start = (first + turn) * STEP
        start_copy(a, [top, start], bar, a_buffer.index(slot))
        start_copy(b, [left, start], bar, b_buffer.index(slot))


@gluon.jit
def start_product(a_buffer, b_buffer, ready, turn, WIDTH: gl.constexpr, STAGES: gl.constexpr,
                  SWAP: gl.constexpr, PART: gl.constexpr, LAYOUT: gl.constexpr):  # fmt: skip
    """Wait for a step's operands and start their product; return it and its slot."""
    slot = turn % STAGES
    mbarrier.wait(ready.index(slot), turn // STAGES & 1)
    unset = gl.zeros([GROUP, WIDTH], gl.float32, LAYOUT)
    x, weight = a_buffer.index(slot), b_buffer.index(slot)
    if SWAP:
        product = warpgroup_mma(weight.slice(GROUP * PART, GROUP), x.permute((1, 0)), unset,
                                use_acc=False, is_async=True)  # fmt: skip
    else:
        product = warpgroup_mma(x.slice(GROUP * PART, GROUP), weight.permute((1, 0)), unset,
                                use_acc=False, is_async=True)  # fmt: skip
    return product, slot


@gluon.jit
def scales_of(a_place, b_place, step, last, a_scale_group):
    """Return the scales of a step; 0 of a step beyond the last."""
    inside = step < last
    a_scale = gl.load(a_place + step * a_scale_group, mask=inside, other=0.0)
    return a_scale, gl.load(b_place + step, mask=inside, other=0.0)


@gluon.jit
def scaled_sum(a_buffer, b_buffer, ready, free, a_place, b_place, first, last, a_scale_group,
               WIDTH: gl.constexpr, STAGES: gl.constexpr, SWAP: gl.constexpr, PART: gl.constexpr,
               LAYOUT: gl.constexpr):  # fmt: skip
    """Return the sum over steps of scaled products; an odd one out is followed by one times 0.

    Scales are asked for a turn of the loop before they are multiplied, even with one another:
    until they arrive takes as long as a turn.
    """
    AXIS: gl.constexpr = 0 if SWAP else 1
    total = gl.zeros([GROUP, WIDTH], gl.float32, LAYOUT)
    a_even, b_even = scales_of(a_place, b_place, first, last, a_scale_group)
    a_odd, b_odd = scales_of(a_place, b_place, first + 1, last, a_scale_group)
    for turn in range(0, last - first, 2):
        even, slot = start_product(a_buffer, b_buffer, ready, turn, WIDTH, STAGES, SWAP, PART,
                                   LAYOUT)  # fmt: skip
        odd, next_slot = start_product(a_buffer, b_buffer, ready, turn + 1, WIDTH, STAGES, SWAP,
                                       PART, LAYOUT)  # fmt: skip
        even_factor, odd_factor = a_even * b_even, a_odd * b_odd
        a_even, b_even = scales_of(a_place, b_place, first + turn + 2, last, a_scale_group)
        a_odd, b_odd = scales_of(a_place, b_place, first + turn + 3, last, a_scale_group)
        product = warpgroup_mma_wait(1, deps=[even])
        mbarrier.arrive(free.index(slot), count=1)
        total += product * gl.expand_dims(even_factor, AXIS)
        # With ``total`` among them, so that the sum above is done while the odd product runs.
        product, total = warpgroup_mma_wait(0, deps=[odd, total])
        mbarrier.arrive(free.index(next_slot), count=1)
        total += product * gl.expand_dims(odd_factor, AXIS)
    return total


@gluon.jit
def sum_of_parts(total, partial, counters, tile, part, parts, WIDTH: gl.constexpr,
                 LAYOUT: gl.constexpr):  # fmt: skip
    """Store this part; return whether it was the last of its tile, which then has the whole sum."""
    rows = gl.arange(0, GROUP, layout=gl.SliceLayout(1, LAYOUT))
    columns = gl.arange(0, WIDTH, layout=gl.SliceLayout(0, LAYOUT))
    at = gl.expand_dims(rows, 1) * WIDTH + gl.expand_dims(columns, 0)
    place = partial + tile.to(gl.int64) * parts * (GROUP * WIDTH) + at
    gl.store(place + part * (GROUP * WIDTH), total)
    barrier()
    is_last = gl.atomic_add(counters + tile, 1, sem="acq_rel", scope="gpu") == parts - 1
    if is_last:
        gl.store(counters + tile, 0)
        total = gl.zeros([GROUP, WIDTH], gl.float32, LAYOUT)
        for number in range(parts):
            total += gl.load(place + number * (GROUP * WIDTH), cache_modifier=".cg")
    return total, is_last


@gluon.jit
def finish(total, out, bias, top, left, m, n, HAS_BIAS: gl.constexpr, ROWS: gl.constexpr,
           COLUMNS: gl.constexpr, SWAP: gl.constexpr):  # fmt: skip
    """Add the bias, round once and store, 16 bytes a thread."""
    STORE: gl.constexpr = gl.BlockedLayout([1, 8], [256 // COLUMNS, COLUMNS // 8], [4, 1], [1, 0])
    result = gl.convert_layout(gl.permute(total, (1, 0)) if SWAP else total, STORE)
    rows = top + gl.arange(0, ROWS, layout=gl.SliceLayout(1, STORE))
    columns = left + gl.arange(0, COLUMNS, layout=gl.SliceLayout(0, STORE))
    if HAS_BIAS:
        added = gl.load(bias + columns, mask=columns < n, other=0.0).to(gl.float32)
        result += gl.expand_dims(added, 0)
    rows, columns = gl.expand_dims(rows, 1), gl.expand_dims(columns, 0)
    at = out + rows.to(gl.int64) * n + columns
    gl.store(at, result.to(out.dtype.element_ty), mask=(rows < m) & (columns < n))


@gluon.jit
def consume(a_buffer, b_buffer, ready, free, out, a_scale, b_place, bias, partial, counters, top,
            left, m, n, first, last, a_scale_group, tile, part, parts, HAS_BIAS: gl.constexpr,
            BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, STAGES: gl.constexpr,
            SPLIT: gl.constexpr, SWAP: gl.constexpr, GROUPS: gl.constexpr,
            PART: gl.constexpr):  # fmt: skip
    """Compute 64 rows of the left operand of a tile, by four warps."""
    ROWS: gl.constexpr = BLOCK_M if SWAP else GROUP
    COLUMNS: gl.constexpr = GROUP if SWAP else BLOCK_N
    WIDTH: gl.constexpr = BLOCK_M if SWAP else BLOCK_N
    LAYOUT: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, WIDTH, 32]
    )
    if SWAP:
        left += GROUP * PART
    else:
        top += GROUP * PART
    rows = top + gl.arange(0, ROWS, layout=gl.SliceLayout(0 if SWAP else 1, LAYOUT))
    a_place = a_scale + gl.minimum(rows, m - 1)
    total = scaled_sum(a_buffer, b_buffer, ready, free, a_place, b_place, first, last,
                       a_scale_group, WIDTH, STAGES, SWAP, PART, LAYOUT)  # fmt: skip
    is_last = True
    if SPLIT:
        total, is_last = sum_of_parts(total, partial, counters, tile * GROUPS + PART, part, parts,
                                      WIDTH, LAYOUT)  # fmt: skip
    if is_last:
        finish(total, out, bias, top, left, m, n, HAS_BIAS, ROWS, COLUMNS, SWAP)


@gluon.jit(do_not_specialize=["m", "a_scale_group", "parts"])
def block_matmul(a, b, out, a_scale, b_scale, bias, partial, counters, m, n, steps, a_scale_group,
                 b_scale_row, parts, WEIGHT_ROWS: gl.constexpr, HAS_BIAS: gl.constexpr,
                 BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, BAND: gl.constexpr,
                 STAGES: gl.constexpr, SPLIT: gl.constexpr, SWAP: gl.constexpr,
                 REGISTERS: gl.constexpr):  # fmt: skip
    """Compute one tile of ``out`` [M, N], or a part of its sum, from descriptors of codes [*, K].

    WEIGHT_ROWS: rows of the weight that share a row of its scales; a multiple of BLOCK_N.
    """
    tile, part, first, last = gl.program_id(0), 0, 0, steps
    if SPLIT:
        tile, part = tile // parts, tile % parts
        first, last = part * steps // parts, (part + 1) * steps // parts
    top, left = place_of(tile, m, n, BLOCK_M, BLOCK_N, BAND)
    b_place = b_scale + left // WEIGHT_ROWS * b_scale_row
    GROUPS: gl.constexpr = (BLOCK_N if SWAP else BLOCK_M) // GROUP
    a_buffer = gl.allocate_shared_memory(a.dtype, [STAGES, BLOCK_M, STEP], a.layout)
    b_buffer = gl.allocate_shared_memory(b.dtype, [STAGES, BLOCK_N, STEP], b.layout)
    ready = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    free = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for slot in gl.static_range(STAGES):
        mbarrier.init(ready.index(slot), count=1)
        mbarrier.init(free.index(slot), count=GROUPS)
    fence_async_shared()
    turns = (last - first + 1) // 2 * 2
    if GROUPS == 1:
        gl.warp_specialize([
            (consume, (a_buffer, b_buffer, ready, free, out, a_scale, b_place, bias, partial,
                       counters, top, left, m, n, first, last, a_scale_group, tile, part, parts,
                       HAS_BIAS, BLOCK_M, BLOCK_N, STAGES, SPLIT, SWAP, GROUPS, 0)),
            (produce, (a, b, a_buffer, b_buffer, ready, free, top, left, first, turns, STAGES)),
        ], [1], [PRODUCER_REGISTERS])  # fmt: skip
    else:
        gl.warp_specialize([
            (consume, (a_buffer, b_buffer, ready, free, out, a_scale, b_place, bias, partial,
                       counters, top, left, m, n, first, last, a_scale_group, tile, part, parts,
                       HAS_BIAS, BLOCK_M, BLOCK_N, STAGES, SPLIT, SWAP, GROUPS, 0)),
            (consume, (a_buffer, b_buffer, ready, free, out, a_scale, b_place, bias, partial,
                       counters, top, left, m, n, first, last, a_scale_group, tile, part, parts,
                       HAS_BIAS, BLOCK_M, BLOCK_N, STAGES, SPLIT, SWAP, GROUPS, 1)),
            (produce, (a, b, a_buffer, b_buffer, ready, free, top, left, first, turns, STAGES)),
        ], [4, 1], [REGISTERS, PRODUCER_REGISTERS])  # fmt: skip
