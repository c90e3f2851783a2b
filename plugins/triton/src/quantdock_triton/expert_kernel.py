"""Products of experts: each tile multiplies rows that were sent to one expert by its weight.

The tiles of products are those of linear layers; only which rows they take is another matter
(``route_kernel.py``). Tiles of the plan that are left over do nothing.
"""

from __future__ import annotations

import triton
import triton.language as tl

from quantdock_triton import matmul_kernel, small_float_kernel
from quantdock_triton.matmul_kernel import sum_of_steps
from quantdock_triton.packed_matmul_kernel import ROWS, packed_sum, store_result
from quantdock_triton.quantize_kernel import wait_for_kernel_before
from quantdock_triton.route_kernel import tile_of
from quantdock_triton.small_float_kernel import RUNS, float_sum


@triton.jit
def own_tile(n, BLOCK_N: tl.constexpr):
    """Return the number of a program's tile in the plan, and its first column of N."""
    across = tl.cdiv(n, BLOCK_N)
    return tl.program_id(0) // across, tl.program_id(0) % across * BLOCK_N


@triton.jit(do_not_specialize=["num_experts", "num_tiles", "top_k", "x_scale_group"])
def scaled_experts(x, weight, out, x_scale, weight_scale, bias, plan, order, num_experts, num_tiles,
                   top_k, n, k, stride_x, stride_out, x_scale_row, x_scale_group, scale_expert,
                   scale_row, scale_group, A_STEPS: tl.constexpr, B_STEPS: tl.constexpr,
                   B_ROWS: tl.constexpr, WIDEN: tl.constexpr, UNIT: tl.constexpr,
                   INTEGER: tl.constexpr, HAS_BIAS: tl.constexpr, EVEN_K: tl.constexpr,
                   BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
                   SWAP: tl.constexpr, TMA: tl.constexpr, DIRECT: tl.constexpr,
                   GATHERS: tl.constexpr, SCATTERS: tl.constexpr,
                   EARLY: tl.constexpr):  # fmt: skip
    """Compute one tile with scaled codes [E, N, K]; constants as for ``scaled_matmul``.

    TMA: x is sorted, and it and the weight [E * N, K] are descriptors.
    """
    if EARLY:
        wait_for_kernel_before()
    tile, left = own_tile(n, BLOCK_N)
    expert, rows, places, has_row = tile_of(plan, order, tile, num_experts, num_tiles, top_k,
                                            DIRECT, GATHERS, SCATTERS, BLOCK_M)  # fmt: skip
    if expert < 0:
        return
    weight_scale += expert * scale_expert
    x_at, weight_at, top = x, weight, 0
    weight_top = (expert * n).to(tl.int32) + left
    if TMA:
        top = tl.load(plan + num_tiles + tile)
    else:
        columns = tl.minimum(left + tl.arange(0, BLOCK_N), n - 1).to(tl.int64)[:, None]
        column = tl.arange(0, BLOCK_K)[None, :]
        x_at = x + rows[:, None] * stride_x + column
        weight_at = weight + expert * n * k + columns * k + column
    total = sum_of_steps(x, weight, x_at, weight_at, x_scale, weight_scale, rows, has_row[:, None],
                         top, weight_top, left, n, k, 0, tl.cdiv(k, BLOCK_K), x_scale_row,
                         x_scale_group, scale_row, scale_group, A_STEPS, B_STEPS, B_ROWS, SWAP, TMA,
                         EVEN_K, WIDEN, INTEGER, BLOCK_M, BLOCK_N, BLOCK_K)  # fmt: skip
    if HAS_BIAS:
        bias += expert * n
    matmul_kernel.finish(total, out, x_scale, weight_scale, bias, rows, places, has_row, left, n,
                         stride_out, x_scale_row, scale_row, A_STEPS, B_STEPS, B_ROWS, UNIT,
                         HAS_BIAS, BLOCK_N, SWAP)  # fmt: skip


@triton.jit(do_not_specialize=["num_experts", "num_tiles", "top_k"])
def small_float_experts(x, words, scale, second, bias, out, plan, order, num_experts, num_tiles,
                        top_k, n, k, stride_x, stride_words, stride_scale, stride_out,
                        BITS: tl.constexpr, PLACES: tl.constexpr, FRACTION: tl.constexpr,
                        UNIT: tl.constexpr, RUN: tl.constexpr, E8M0: tl.constexpr,
                        PTX: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
                        DIRECT: tl.constexpr, GATHERS: tl.constexpr, SCATTERS: tl.constexpr,
                        EARLY: tl.constexpr):  # fmt: skip
    """Compute one tile with words [E, N, words]; constants as for ``small_float_matmul``."""
    if EARLY:
        wait_for_kernel_before()
    tile, left = own_tile(n, BLOCK_N)
    expert, rows, places, has_row = tile_of(plan, order, tile, num_experts, num_tiles, top_k,
                                            DIRECT, GATHERS, SCATTERS, BLOCK_M)  # fmt: skip
    if expert < 0:
        return
    columns = left + tl.arange(0, BLOCK_N)
    known = (expert * n + tl.minimum(columns, n - 1))[:, None]
    word = tl.arange(0, RUNS * RUN)
    x += rows[:, None] * stride_x
    words += known * stride_words + word[None, :]
    scale += known * stride_scale + tl.arange(0, RUNS)[None, :]
    turns, is_there = tl.cdiv(stride_words, RUNS * RUN), has_row[:, None]
    total = float_sum(x, is_there, words, scale, word, k, stride_words, 0, turns, BITS, PLACES,
                      FRACTION, UNIT, RUN, E8M0, PTX, BLOCK_M, BLOCK_N)  # fmt: skip
    if second is not None:
        second += expert * n
    if bias is not None:
        bias += expert * n
    small_float_kernel.finish(total, second, bias, out, places, columns, is_there, n, stride_out)


@triton.jit(do_not_specialize=["num_experts", "num_tiles", "top_k", "n", "steps", "groups",
                               "stride_scale", "stride_out"])  # fmt: skip
def packed_experts(x, words, scale, zero, bias, out, plan, order, num_experts, num_tiles, top_k, n,
                   k, steps, groups, stride_x, stride_scale, stride_out, BITS: tl.constexpr,
                   PLANE: tl.constexpr, TAKEN: tl.constexpr, PER_GROUP: tl.constexpr,
                   RUN: tl.constexpr, MIDDLE: tl.constexpr, FOLDED: tl.constexpr,
                   EVEN_K: tl.constexpr, PTX: tl.constexpr, BLOCK_M: tl.constexpr,
                   BLOCK_N: tl.constexpr, DIRECT: tl.constexpr, GATHERS: tl.constexpr,
                   SCATTERS: tl.constexpr, EARLY: tl.constexpr):  # fmt: skip
    """Compute one tile with blocks of words of each expert; constants as for ``packed_matmul``."""
    if EARLY:
        wait_for_kernel_before()
    tile, left = own_tile(n, BLOCK_N)
    expert, rows, places, has_row = tile_of(plan, order, tile, num_experts, num_tiles, top_k,
                                            DIRECT, GATHERS, SCATTERS, BLOCK_M)  # fmt: skip
    if expert < 0:
        return
    columns = left + tl.arange(0, BLOCK_N)
    word, is_there = tl.arange(0, TAKEN)[None, :], has_row[:, None]
    known = tl.minimum(columns, n - 1)
    block = expert * tl.cdiv(n, ROWS) + known // ROWS
    words += block[:, None] * steps * (ROWS * PLANE) + known[:, None] % ROWS * PLANE + word
    scale += expert * groups * stride_scale
    if zero is not None:
        zero += expert * groups * stride_scale
    if bias is not None:
        bias += expert * n
    x += rows[:, None] * stride_x + word
    total = packed_sum(x, is_there, words, scale, zero, known, word, k, groups, stride_scale, 0,
                       steps * (PLANE // TAKEN), BITS, PLANE, TAKEN, PER_GROUP, RUN, MIDDLE, FOLDED,
                       EVEN_K, PTX, BLOCK_M, BLOCK_N)  # fmt: skip
    store_result(total, out, scale, bias, columns, places, is_there, n, stride_out,
                 PER_GROUP == 0 and not FOLDED)  # fmt: skip
