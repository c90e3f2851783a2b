"""Products of a few rows an expert with packed codes, at the speed of the memory.

Tiles of ``packed_stream_kernel`` for the plan of a routing (``quantdock_triton.route_kernel``), or
for pairs that are not sorted, each of which is a tile.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from quantdock_cuda.block_operands import wait_for_kernel_before
from quantdock_cuda.packed_stream_kernel import finish, stream_sum, sum_of_shares
from quantdock_cuda.packed_stream_scales import BLOCK


@gluon.jit
def rows_of(tile, plan, num_tiles, top_k, DIRECT: gl.constexpr, IS_FIRST: gl.constexpr):
    """Return a tile's first row of x and the one after its last, and likewise of the result."""
    if DIRECT:
        row = tile // top_k if IS_FIRST else tile
        return row, row + 1, tile, tile + 1
    else:
        top, end = gl.load(plan + num_tiles + tile), gl.load(plan + 2 * num_tiles + tile)
        return top, end, top, end


@gluon.jit(do_not_specialize=["num_tiles", "num_experts", "top_k", "n", "k", "steps", "groups"])
def stream_experts(words, x, scale, zero, stored, bias, out, plan, order, num_tiles, num_experts,
                   top_k, n, k, steps, groups, stride_x, FORM: gl.constexpr, DIRECT: gl.constexpr,
                   IS_FIRST: gl.constexpr):  # fmt: skip
    """Compute one tile of ``out`` [pairs, N] with words of each expert.

    IS_FIRST: of w13: x has a row for each token, and the result is sorted as the plan is; else x is
    that, and the result has the pairs as they are numbered. DIRECT: nothing is sorted, and the plan
    is the ids of experts. The kernel before that of w2 has itself waited for what wrote the plan.
    """
    LAYOUT: gl.constexpr = gl.NVMMADistributedLayout(
        version=[2, 0], warps_per_cta=[FORM.shares, FORM.across, 1], instr_shape=[1, 16, 8]
    )
    across = gl.cdiv(n, FORM.rows)
    tile, left = gl.program_id(0) // across, gl.program_id(0) % across * FORM.rows
    if IS_FIRST:
        wait_for_kernel_before()
    expert = gl.load(plan + tile)
    if DIRECT:
        expert = gl.where(expert < num_experts, expert, -1)
    own = gl.maximum(expert, 0).to(gl.int64)
    blocks = own * gl.cdiv(n, BLOCK) * steps
    words += blocks * (BLOCK * FORM.plane)
    scale += own * groups * n
    if zero is not None:
        zero += own * groups * n
    if FORM.pieces > 0:
        stored += blocks * (BLOCK * FORM.pieces)
    if bias is not None:
        bias += own * n
    if expert >= 0:
        x_top, x_end, top, end = rows_of(tile, plan, num_tiles, top_k, DIRECT, IS_FIRST)
        place = (x_top, left, 0, steps)
        sizes = (x_end, n, k, steps, groups)
        if IS_FIRST and not DIRECT:
            total = stream_sum(words, x, scale, zero, stored, place, sizes, (stride_x, n), FORM,
                               x.dtype.element_ty, LAYOUT, (order, top_k))  # fmt: skip
        else:
            total = stream_sum(words, x, scale, zero, stored, place, sizes, (stride_x, n), FORM,
                               x.dtype.element_ty, LAYOUT)  # fmt: skip
        result = sum_of_shares(total, FORM)
        if IS_FIRST or DIRECT:
            finish(result, out, scale, bias, (top, left), end, 0, n, n, FORM)
        else:
            finish(result, out, scale, bias, (top, left), end, 0, n, n, FORM, order)
