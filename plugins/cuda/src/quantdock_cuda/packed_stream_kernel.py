"""Products of few rows of x with packed codes of integers or fp4, at the speed of the memory.

A warp has rows of the weight and its own steps along K, or shares them with warps that have other
rows. It reads words straight into the registers that ``mma.sync`` takes them from once they are
unpacked; x comes by shared memory. The sums of a program's warps are added up at the end.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy, mma_v2

from quantdock_cuda.block_kernel import let_kernel_after_start
from quantdock_cuda.block_operands import wait_for_kernel_before
from quantdock_cuda.block_result import sum_of_parts
from quantdock_cuda.packed_stream_ahead import bring_near
from quantdock_cuda.packed_stream_operand import (
    along,
    axis,
    float_operand,
    left_operand,
    right_operand,
    words_layout,
    x_layout,
)
from quantdock_cuda.packed_stream_scales import (
    BLOCK,
    bytes_at,
    bytes_of,
    first_zeros,
    floats_of,
    groups_of,
    rows_at,
    values_of,
)

_HAS_LOAD = hasattr(async_copy, "async_load")  # the other name is that of Triton 3.6
start_copy = async_copy.async_load if _HAS_LOAD else async_copy.async_copy_global_to_shared
VECTOR = gl.constexpr(4)  # pairs that are copied at once; K is a multiple


@gluon.constexpr_function
def copy_layout(form):
    """Return who copies what of x [shares, x_rows, columns / 2]."""
    tall = min(form.x_rows, form.warps)
    deep = min(form.shares, form.warps // tall)
    warps = [deep, tall, form.warps // tall // deep]
    return gl.BlockedLayout([1, 1, 4], [1, 1, 32], warps, [2, 1, 0])


@gluon.constexpr_function
def store_layout(form):
    """Return who adds up and stores what of the result [tokens, rows]."""
    wide = min(form.rows // 2, 32)
    return gl.BlockedLayout([1, 2], [32 // wide, wide], [form.warps, 1], [1, 0])


@gluon.jit
def words_at(words, left, steps, FORM: gl.constexpr):
    """Return where the pairs of words of a block's first step are, for rows from ``left`` on."""
    LAYOUT: gl.constexpr = words_layout(FORM)
    PAIRS: gl.constexpr = FORM.plane // 2
    row = gl.arange(0, FORM.rows, layout=axis(LAYOUT, 1))
    at = row * PAIRS
    if FORM.rows > BLOCK:
        at = row // BLOCK * steps * (BLOCK * PAIRS) + row % BLOCK * PAIRS
    words = words.to(gl.pointer_type(gl.int32), bitcast=True)
    words += (left // BLOCK).to(gl.int64) * steps * (BLOCK * PAIRS) + left % BLOCK * PAIRS
    return words + along(at, 1) + along(gl.arange(0, PAIRS, layout=axis(LAYOUT, 2)), 2)


@gluon.jit
def words_of(words, share, turn, turns, last, FORM: gl.constexpr):
    """Return the pairs of words of each share's step of a turn, which the last turn has nothing of.

    A share that has no step left reads the last one. Words leave the near cache first: x stays.
    """
    step = gl.minimum(share + turn * FORM.shares, last - 1)
    at = words + along(step * (BLOCK * FORM.plane // 2), 0)
    mask = gl.full(at.shape, turn < turns, gl.int1, words_layout(FORM))
    return gl.load(at, mask=mask, eviction_policy="evict_first")


@gluon.jit
def rows_of_x(x, top, m, stride, order, PAIRS: gl.constexpr, FORM: gl.constexpr,
              LAYOUT: gl.constexpr):  # fmt: skip
    """Return where pairs of x [shares, x_rows, PAIRS] of the first step are.

    ``order``, if there is one, has pairs of a token and an expert, and how many a token has.
    """
    row = gl.minimum(top + gl.arange(0, FORM.x_rows, layout=axis(LAYOUT, 1)), m - 1)
    if order is not None:
        row = gl.load(order[0] + row) // order[1]
    x = x.to(gl.pointer_type(gl.int32), bitcast=True)
    x += along(row.to(gl.int64) * (stride // 2), 1)
    return x + along(gl.arange(0, PAIRS, layout=axis(LAYOUT, 2)), 2)


@gluon.jit
def kept_x(x, top, m, first, last, k, stride, order, FORM: gl.constexpr):
    """Return x of all turns in shared memory; 0 beyond the end."""
    LAYOUT: gl.constexpr = copy_layout(FORM)
    SHARES: gl.constexpr = FORM.shares
    PAIRS: gl.constexpr = FORM.planes * FORM.plane // 2
    SHAPE: gl.constexpr = [FORM.turns, SHARES, FORM.x_rows, PAIRS]
    PLAIN: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [2, 1, 0])
    buffers = gl.allocate_shared_memory(gl.int32, SHAPE, PLAIN)
    x = rows_of_x(x, top, m, stride, order, PAIRS, FORM, LAYOUT)
    share = first + gl.arange(0, SHARES, layout=axis(LAYOUT, 0))
    vector = gl.arange(0, PAIRS, layout=axis(LAYOUT, 2)) // VECTOR
    for turn in range(gl.cdiv(last - first, SHARES)):
        step = share + turn * SHARES
        column = gl.minimum(step, last - 1) * PAIRS
        at = along(column // VECTOR, 0) + along(vector, 2)
        inside = along(step < last, 0) & (at < k // (2 * VECTOR))
        start_copy(buffers.index(turn), x + along(column, 0), mask=inside)
    async_copy.commit_group()
    async_copy.wait_group(0)
    return buffers


@gluon.jit
def x_of(given, step, last, k, PLACE: gl.constexpr, FORM: gl.constexpr):
    """Return pairs of x [shares, x_rows, plane / 2] of one place of a step: kept, or read."""
    LAYOUT: gl.constexpr = x_layout(FORM)
    PAIRS: gl.constexpr = FORM.plane // 2
    if FORM.keeps_x:
        return given.slice(PLACE * PAIRS, PAIRS, dim=2).load(LAYOUT)
    else:
        column = (gl.minimum(step, last - 1) * FORM.planes + PLACE) * PAIRS
        if FORM.whole_steps:
            return gl.load(given + along(column, 0))
        else:
            inside = along((step < last) & (column < k // 2), 0)
            return gl.load(given + along(column, 0), mask=inside, other=0)


@gluon.jit
def turn_sum(total, taken, stored, given, x_step, k, groups_at, scales, zeros,
             FORM: gl.constexpr, dtype: gl.constexpr, LAYOUT: gl.constexpr):  # fmt: skip
    """Return ``total`` plus the products of one step of each share, and the next scales and zeros.

    Those of a group are read as soon as it has been multiplied, a turn before they are needed.
    Scales that are bytes, ``stored``, are read with their words.
    """
    PLANES: gl.constexpr = FORM.planes
    RUN: gl.constexpr = FORM.run
    scale, zero, scale_step, zero_step, last, groups, stride = groups_at
    unset = gl.full(total.shape, 0.0, gl.float32, LAYOUT)
    next_scales, next_zeros = (), ()
    product = total if FORM.per_group == 0 else unset
    for place in gl.static_range(PLANES):
        x = x_of(given, x_step, last, k, place, FORM)
        x = right_operand(x, FORM, dtype, LAYOUT)
        if FORM.pieces > 0:
            weight = float_operand(taken, stored, place, FORM, dtype, LAYOUT)
        else:
            subtracted = floats_of(zeros[place // RUN if len(zeros) > 1 else 0])
            weight = left_operand(taken, subtracted, place, FORM, dtype, LAYOUT)
        product = mma_v2(weight, x, product)
        if FORM.per_group > 0 and place % RUN == RUN - 1:
            total += product * gl.expand_dims(floats_of(scales[place // RUN]), 2)
            product = unset
            at = values_of(scale, scale_step, last, groups, stride, place, FORM)
            next_scales = next_scales + (at,)  # noqa: RUF005
            if zero is not None:
                at = values_of(zero, zero_step, last, groups, stride, place, FORM)
                next_zeros = next_zeros + (at,)  # noqa: RUF005
    if FORM.per_group == 0:
        total = product
    if len(next_zeros) == 0:
        next_zeros = zeros
    return total, next_scales, next_zeros


@gluon.jit
def stream_sum(words, x, scale, zero, stored, place, sizes, strides, FORM: gl.constexpr,
               dtype: gl.constexpr, LAYOUT: gl.constexpr, order=None):  # fmt: skip
    """Return the sums of all shares [shares, rows, tokens] over the steps of a program."""
    SHARES: gl.constexpr = FORM.shares
    WORDS: gl.constexpr = words_layout(FORM)
    top, left, first, last = place
    m, n, k, steps, groups = sizes
    stride_x, stride = strides
    own_words = words_at(words, left, steps, FORM)
    scale = rows_at(scale, left, n, FORM, LAYOUT)
    if zero is not None:
        zero = rows_at(zero, left, n, FORM, WORDS)
    words_share = first + gl.arange(0, SHARES, layout=axis(WORDS, 0))
    x_share = first + gl.arange(0, SHARES, layout=axis(x_layout(FORM), 0))
    share = first + gl.arange(0, SHARES, layout=axis(LAYOUT, 0))
    total = gl.full([SHARES, FORM.rows, FORM.tokens], 0.0, gl.float32, LAYOUT)
    turns = gl.cdiv(last - first, SHARES)
    taken = words_of(own_words, words_share, 0, turns, last, FORM)
    own_bytes = bytes_at(stored, left, steps, FORM)
    scale_bytes = bytes_of(own_bytes, first, 0, turns, last, FORM)
    scales = groups_of(scale, share, last, groups, stride, FORM)
    zeros = first_zeros(zero, words_share, last, groups, stride, FORM)
    if FORM.early:
        if FORM.ahead:
            bring_near(words, left, steps, first, last, turns, FORM)
        wait_for_kernel_before()
        let_kernel_after_start()
    if FORM.keeps_x:
        x = kept_x(x, top, m, first, last, k, stride_x, order, FORM)
    else:
        x = rows_of_x(x, top, m, stride_x, order, FORM.plane // 2, FORM, x_layout(FORM))
    for turn in range(turns):
        x_step, ahead = x_share + turn * SHARES, (turn + 1) * SHARES
        groups_at = (scale, zero, share + ahead, words_share + ahead, last, groups, stride)
        given = x.index(turn) if FORM.keeps_x else x
        total, scales, zeros = turn_sum(total, taken, scale_bytes, given, x_step, k, groups_at,
                                        scales, zeros, FORM, dtype, LAYOUT)  # fmt: skip
        taken = words_of(own_words, words_share, turn + 1, turns, last, FORM)
        scale_bytes = bytes_of(own_bytes, first, turn + 1, turns, last, FORM)
    return total


@gluon.jit
def sum_of_shares(total, FORM: gl.constexpr):
    """Return the sum over all shares [tokens, rows], by shared memory."""
    STORE: gl.constexpr = store_layout(FORM)
    SHARES: gl.constexpr = FORM.shares
    ROWS: gl.constexpr = FORM.rows
    LAYOUT: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [1, 0])
    total = gl.reshape(total, [SHARES * ROWS, FORM.tokens])
    buffer = gl.allocate_shared_memory(gl.float32, total.shape, LAYOUT, total)
    result = gl.full([FORM.tokens, ROWS], 0.0, gl.float32, STORE)
    for share in gl.static_range(SHARES):
        result += buffer.slice(share * ROWS, ROWS, dim=0).permute((1, 0)).load(STORE)
    return result


@gluon.jit
def finish(result, out, scale, bias, place, m, first_row, n, stride_out, FORM: gl.constexpr,
           order=None):  # fmt: skip
    """Scale the sum where one scale serves a whole row of the weight, add the bias, store.

    Rows up to ``m`` go where ``order`` says, if there is one.
    """
    STORE: gl.constexpr = store_layout(FORM)
    top, left = place
    rows = gl.expand_dims(top + gl.arange(0, FORM.tokens, layout=gl.SliceLayout(1, STORE)), 1)
    columns = left + gl.arange(0, FORM.rows, layout=gl.SliceLayout(0, STORE))
    inside = (columns >= first_row) & (columns < n)
    if FORM.per_group == 0:
        factor = gl.load(scale + columns, mask=inside, other=0.0).to(gl.float32)
        result *= gl.expand_dims(factor, 0)
    if bias is not None:
        added = gl.load(bias + columns, mask=inside, other=0.0).to(gl.float32)
        result += gl.expand_dims(added, 0)
    places = rows
    if order is not None:
        places = gl.load(order + rows, mask=rows < m, other=0)
    at = out + places.to(gl.int64) * stride_out + gl.expand_dims(columns, 0)
    mask = (rows < m) & gl.expand_dims(inside, 0)
    gl.store(at, result.to(out.dtype.element_ty), mask=mask)


@gluon.jit(do_not_specialize=["m", "first_row", "n", "k", "steps", "groups", "stride_scale",
                              "stride_out", "parts"])  # fmt: skip
def packed_stream(words, x, scale, zero, stored, bias, out, partial, counters, m, first_row, n, k,
                  steps, groups, stride_x, stride_scale, stride_out, parts,
                  FORM: gl.constexpr):  # fmt: skip
    """Compute one tile of ``out`` [M, N], or a part of its sum, for rows of the weight to ``n``."""
    LAYOUT: gl.constexpr = gl.NVMMADistributedLayout(
        version=[2, 0], warps_per_cta=[FORM.shares, FORM.across, 1], instr_shape=[1, 16, 8]
    )
    tile, part = gl.program_id(0) // parts, gl.program_id(0) % parts
    tall = gl.cdiv(m, FORM.tokens)
    top = tile % tall * FORM.tokens
    left = first_row // FORM.rows * FORM.rows + tile // tall * FORM.rows
    place = (top, left, part * steps // parts, (part + 1) * steps // parts)
    total = stream_sum(words, x, scale, zero, stored, place, (m, n, k, steps, groups),
                       (stride_x, stride_scale), FORM, x.dtype.element_ty, LAYOUT)  # fmt: skip
    result, is_last = sum_of_shares(total, FORM), True
    if FORM.split:
        result, is_last = sum_of_parts(result, partial, counters, tile, part, parts, FORM.tokens,
                                       FORM.rows, store_layout(FORM))  # fmt: skip
    if is_last:
        finish(result, out, scale, bias, (top, left), m, first_row, n, stride_out, FORM)
