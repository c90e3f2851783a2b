"""Products of few rows with fp8 weights by a kernel that quantizes x itself, on Hopper.

One warp copies weights ahead, and starts with that while the kernel before still writes x. One or
two groups of four warps quantize what they need of x meanwhile, keep the codes in shared memory,
and multiply. Each program does so for itself: few rows are read from cache in less time than the
first weights take to arrive, and one launch is left of two.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from quantdock_cuda.block_kernel import (
    GROUP,
    PRODUCER_REGISTERS,
    STEP,
    let_kernel_after_start,
    room_for_sums,
    start_copy,
    sum_of_groups,
    wait_for_kernel_before,
)
from quantdock_cuda.block_result import store, sum_of_parts, with_bias
from quantdock_cuda.fused_input import AT_ONCE, PLAIN_ROW, largest_of, quantize, scale_of_rows
from quantdock_triton.encode_kernel import SMALLEST_SCALE

CODES = gl.constexpr(gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=8, rank=2))


@gluon.jit
def work_of(item, sizes, SPLIT: gl.constexpr):
    """Return the tile of an item of work, its part of the sum, its first step and the one after."""
    _, _, steps, parts, _ = sizes
    tile, part, first, last = item, 0, 0, steps
    if SPLIT:
        tile, part = item // parts, item % parts
        first, last = part * steps // parts, (part + 1) * steps // parts
    return tile, part, first, last


@gluon.jit
def produce(weight, slots, sizes, TILE: gl.constexpr, SPLIT: gl.constexpr):
    """Copy the weights of one step after the other into the slots that are free."""
    ROUND: gl.constexpr = 2 * TILE.slices
    buffer, ready, free = slots
    count = 0
    for item in range(gl.program_id(0), sizes[4], gl.num_programs(0)):
        tile, _, first, last = work_of(item, sizes, SPLIT)
        for turn in range(gl.cdiv(last - first, ROUND) * ROUND):
            slot = count % TILE.stages
            mbarrier.wait(free.index(slot), (count // TILE.stages & 1) ^ 1)
            mbarrier.expect(ready.index(slot), weight.block_type.nbytes)
            place = [tile * TILE.n, (first + turn) * STEP]
            start_copy(weight, place, ready.index(slot), buffer.index(slot))
            count += 1


@gluon.jit
def start_product(slots, codes, turn, at, TILE: gl.constexpr, LAYOUT: gl.constexpr):
    """Wait for a step's weights and start their product; return it and their slot."""
    buffer, ready, _ = slots
    slot = turn % TILE.stages
    mbarrier.wait(ready.index(slot), turn // TILE.stages & 1)
    WIDTH: gl.constexpr = TILE.m
    unset = gl.zeros([GROUP, WIDTH], gl.float32, LAYOUT)
    x = codes.index(at).permute((1, 0))
    return warpgroup_mma(buffer.index(slot), x, unset, use_acc=False, is_async=True), slot


@gluon.jit
def factors_of(scales, weight_scales, at, LAYOUT: gl.constexpr):
    """Return what the product of the step at ``at`` is multiplied by."""
    return scales.index(at).load(gl.SliceLayout(0, LAYOUT)) * weight_scales


@gluon.jit
def scaled_sum(slots, made, place, count, first, last, BASE: gl.constexpr, TURN: gl.constexpr,
               TILE: gl.constexpr, IS_GROUPED: gl.constexpr, LAYOUT: gl.constexpr):  # fmt: skip
    """Return the sum over steps, every ``TILE.slices`` th from TURN, in groups of scaled products.

    Their codes lie from BASE on. Scales of weights are asked for a turn before they are needed.
    """
    codes, scales = made
    free = slots[2]
    NEXT: gl.constexpr = TILE.slices
    WIDTH: gl.constexpr = TILE.m
    total = gl.zeros([GROUP, WIDTH], gl.float32, LAYOUT)
    even_scale, odd_scale = 0.0, 0.0
    if IS_GROUPED:
        step = first + TURN
        even_scale = gl.load(place + step, mask=step < last, other=0.0)
        odd_scale = gl.load(place + step + NEXT, mask=step + NEXT < last, other=0.0)
    for pair in range(gl.cdiv(last - first, 2 * NEXT)):
        turn, at = count + TURN + 2 * NEXT * pair, BASE + 2 * pair
        even, slot = start_product(slots, codes, turn, at, TILE, LAYOUT)
        odd, next_slot = start_product(slots, codes, turn + NEXT, at + 1, TILE, LAYOUT)
        if IS_GROUPED:
            even_factor = factors_of(scales, even_scale, at, LAYOUT)
            odd_factor = factors_of(scales, odd_scale, at + 1, LAYOUT)
            step = first + TURN + 2 * NEXT * (pair + 1)
            even_scale = gl.load(place + step, mask=step < last, other=0.0)
            odd_scale = gl.load(place + step + NEXT, mask=step + NEXT < last, other=0.0)
        product = warpgroup_mma_wait(1, deps=[even])
        mbarrier.arrive(free.index(slot), count=1)
        if IS_GROUPED:
            product = product * gl.expand_dims(even_factor, 0)
        total += product
        product, total = warpgroup_mma_wait(0, deps=[odd, total])
        mbarrier.arrive(free.index(next_slot), count=1)
        if IS_GROUPED:
            product = product * gl.expand_dims(odd_factor, 0)
        total += product
    return total


@gluon.jit
def along_columns(scale, LAYOUT: gl.constexpr):
    """Return scales of rows of x so that they broadcast over a product; one is for all."""
    if len(scale.shape) > 0:
        return gl.expand_dims(gl.convert_layout(scale, gl.SliceLayout(0, LAYOUT)), 0)
    else:
        return scale


@gluon.jit
def finish(total, scale, factors, result, sizes, tile, part, n, TILE: gl.constexpr,
           ROWS: gl.constexpr, IS_GROUPED: gl.constexpr, HAS_BIAS: gl.constexpr,
           SPLIT: gl.constexpr, LAYOUT: gl.constexpr):  # fmt: skip
    """Add the other parts of a sum, scale what was not scaled, add the bias and store."""
    out, bias, partial, counters = result
    m, _, _, parts, _ = sizes
    left = tile * TILE.n
    is_last = True
    if SPLIT:
        total, is_last = sum_of_parts(total, partial, counters, tile, part, parts, GROUP, TILE.m,
                                      LAYOUT)  # fmt: skip
    if is_last:
        if not IS_GROUPED:
            weight_scale, stride = factors
            rows = left + gl.arange(0, GROUP, layout=gl.SliceLayout(1, LAYOUT))
            own = gl.load(weight_scale + rows * stride, mask=rows < n, other=0.0)
            total = total * along_columns(scale, LAYOUT) * gl.expand_dims(own, 1)
        found = with_bias(gl.permute(total, (1, 0)), bias, left, n, GROUP, HAS_BIAS)
        store(found, out, 0, left, m, n, TILE.m, GROUP)


@gluon.jit
def consume(x, stride_x, slots, made, sums, result, factors, input_scale, sizes, n,
            TILE: gl.constexpr, PLAN: gl.constexpr, ROWS: gl.constexpr, WEIGHT_ROWS: gl.constexpr,
            NUM: gl.constexpr, SPEC: gl.constexpr, HAS_BIAS: gl.constexpr, SPLIT: gl.constexpr,
            TURN: gl.constexpr):  # fmt: skip
    """Quantize x, and compute 64 rows of the weight of tiles, or some steps of their sums."""
    LAYOUT: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, TILE.m, 32]
    )
    WIDE: gl.constexpr = gl.BlockedLayout([1, 16], [4, 8], [4, 1], [1, 0])
    LOAD: gl.constexpr = WIDE if ROWS == 16 else gl.BlockedLayout([1, 8], [2, 16], [4, 1], [1, 0])
    BASE: gl.constexpr = TURN * PLAN.pieces * (AT_ONCE if ROWS == 1 else 1)
    wait_for_kernel_before()
    let_kernel_after_start()
    scale, divisor = 0.0, 0.0
    if NUM > 0:
        scale = largest_of(input_scale, NUM)
        divisor = gl.maximum(scale, SMALLEST_SCALE)
    elif not PLAN.is_grouped:
        scale = scale_of_rows(x, stride_x, sizes, PLAN.all_pieces, PLAN.all_ahead, ROWS,
                              PLAN.is_whole, SPEC[0], SPEC[1], SPEC[4], LOAD)  # fmt: skip
        divisor = scale
        if len(scale.shape) > 0:
            divisor = gl.expand_dims(scale, 1)
    _, _, first, last = work_of(gl.program_id(0), sizes, SPLIT)
    quantize(x, stride_x, made, divisor, sizes, first, last, TURN, TILE.slices, PLAN, ROWS, TILE.m,
             NUM, SPEC, LOAD)  # fmt: skip
    ROUND: gl.constexpr = 2 * TILE.slices
    count = 0
    for item in range(gl.program_id(0), sizes[4], gl.num_programs(0)):
        tile, part, first, last = work_of(item, sizes, SPLIT)
        place = factors[0] + tile * TILE.n // WEIGHT_ROWS * factors[1]
        total = scaled_sum(slots, made, place, count, first, last, BASE, TURN, TILE,
                           PLAN.is_grouped, LAYOUT)  # fmt: skip
        count += gl.cdiv(last - first, ROUND) * ROUND
        if TILE.slices > 1:
            number = item // gl.num_programs(0)
            total = sum_of_groups(total, sums, number, TILE, 0, TURN, LAYOUT)
        if TURN == 0:
            finish(total, scale, factors, result, sizes, tile, part, n, TILE, ROWS, PLAN.is_grouped,
                   HAS_BIAS, SPLIT, LAYOUT)  # fmt: skip


@gluon.jit(do_not_specialize=["m", "steps", "weight_scale_row", "parts", "num_items"])
def fused_matmul(x, weight, out, weight_scale, input_scale, bias, partial, counters, m, n, k, steps,
                 stride_x, weight_scale_row, parts, num_items, TILE: gl.constexpr,
                 PLAN: gl.constexpr, ROWS: gl.constexpr, WEIGHT_ROWS: gl.constexpr,
                 NUM: gl.constexpr, SPEC: gl.constexpr, HAS_BIAS: gl.constexpr,
                 SPLIT: gl.constexpr, REGISTERS: gl.constexpr):  # fmt: skip
    """Compute ``out`` [M, N] from x [M, K] and a descriptor of codes [N, K], M <= ROWS or TILE.m.

    Items of work that one program does have the same part of the sum. PLAN: as in
    ``quantdock_cuda.fused_matmul``. NUM: static scales. SPEC: divisor and cut of scales, and the
    range of codes, as in ``quantdock_triton.quantize``.
    """
    STAGES: gl.constexpr = TILE.stages
    SLOTS: gl.constexpr = TILE.slices * PLAN.pieces * (AT_ONCE if ROWS == 1 else 1)
    LIST: gl.constexpr = mbarrier.MBarrierLayout()
    buffer = gl.allocate_shared_memory(weight.dtype, [STAGES, TILE.n, STEP], weight.layout)
    codes = gl.allocate_shared_memory(weight.dtype, [SLOTS, TILE.m, STEP], CODES)
    scales = gl.allocate_shared_memory(gl.float32, [SLOTS, ROWS], PLAIN_ROW)
    ready = gl.allocate_shared_memory(gl.int64, [STAGES, 1], LIST)
    free = gl.allocate_shared_memory(gl.int64, [STAGES, 1], LIST)
    for slot in gl.static_range(STAGES):
        mbarrier.init(ready.index(slot), count=1)
        mbarrier.init(free.index(slot), count=1)
    sums = room_for_sums((buffer, buffer, ready, free), TILE, 1)
    fence_async_shared()
    slots, made = (buffer, ready, free), (codes, scales)
    result = out, bias, partial, counters
    factors = weight_scale, weight_scale_row
    sizes = m, k, steps, parts, num_items
    if TILE.slices == 1:
        gl.warp_specialize([
            (consume, (x, stride_x, slots, made, sums, result, factors, input_scale, sizes, n, TILE,
                       PLAN, ROWS, WEIGHT_ROWS, NUM, SPEC, HAS_BIAS, SPLIT, 0)),
            (produce, (weight, slots, sizes, TILE, SPLIT)),
        ], [1], [PRODUCER_REGISTERS])  # fmt: skip
    else:
        gl.warp_specialize([
            (consume, (x, stride_x, slots, made, sums, result, factors, input_scale, sizes, n, TILE,
                       PLAN, ROWS, WEIGHT_ROWS, NUM, SPEC, HAS_BIAS, SPLIT, 0)),
            (consume, (x, stride_x, slots, made, sums, result, factors, input_scale, sizes, n, TILE,
                       PLAN, ROWS, WEIGHT_ROWS, NUM, SPEC, HAS_BIAS, SPLIT, 1)),
            (produce, (weight, slots, sizes, TILE, SPLIT)),
        ], [4, 1], [REGISTERS, PRODUCER_REGISTERS])  # fmt: skip
