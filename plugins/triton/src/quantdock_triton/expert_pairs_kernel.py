"""Products of pairs that share no expert, with 8-bit codes: each pair's row is quantized here.

Every program quantizes the row for itself, which takes less time than a kernel and its launch.
"""

from __future__ import annotations

import triton
import triton.language as tl

from quantdock_triton.encode_kernel import encode_tile, larger, scale_of, wide
from quantdock_triton.expert_end_kernel import (
    add_up_when_last,
    columns_of,
    shares_of,
    store_gated,
)
from quantdock_triton.expert_kernel import own_tile
from quantdock_triton.matmul_kernel import widened
from quantdock_triton.quantize_kernel import wait_for_kernel_before


@triton.jit
def row_of_pair(x, k, STEPS: tl.constexpr, BLOCK_K: tl.constexpr, GROUPED: tl.constexpr,
                WIDEN: tl.constexpr, SPEC: tl.constexpr, dtype: tl.constexpr):  # fmt: skip
    """Return a row of k values [STEPS, BLOCK_K], a step below the other, as codes of ``dtype``.

    And their scales [STEPS, 1]; without GROUPED, the one that all have. WIDEN: the values as they
    are, and 1.
    """
    LOWEST: tl.constexpr = SPEC[0]
    LARGEST: tl.constexpr = SPEC[1]
    PTX: tl.constexpr = SPEC[2]
    TOP: tl.constexpr = SPEC[3]
    CARRY: tl.constexpr = SPEC[4]
    columns = tl.arange(0, STEPS)[:, None] * BLOCK_K + tl.arange(0, BLOCK_K)[None, :]
    values = tl.load(x + columns, mask=columns < k, other=0.0)
    if WIDEN != "":
        return values, tl.full([STEPS, 1], 1.0, dtype=tl.float32)
    else:
        values = wide(values, PTX)
        most = tl.reduce(tl.abs(values), 1, larger)
        most = most[:, None] if GROUPED else tl.reduce(most, 0, larger)
        scale = scale_of(most, TOP, CARRY)
        codes = encode_tile(values, scale, x.dtype.element_ty, CARRY, LOWEST, LARGEST, PTX,
                            dtype)  # fmt: skip
        return codes, scale


@triton.jit
def sum_of_steps(given, own_scales, weight, scales, k, turns, scale_group, GROUPED: tl.constexpr,
                 B_STEPS: tl.constexpr, WIDEN: tl.constexpr, INTEGER: tl.constexpr,
                 EVEN_K: tl.constexpr, STEPS: tl.constexpr, BLOCK_N: tl.constexpr,
                 BLOCK_K: tl.constexpr):  # fmt: skip
    """Return the sum over steps [BLOCK_N], times what scales change from step to step.

    Each product is one with all steps of x, of which only the step's own counts: so x, which lies
    there once, is the same operand in all turns. ``weight`` points to the first columns of rows
    [BLOCK_N, BLOCK_K], ``scales`` to the first of those of these rows.
    """
    SCALED: tl.constexpr = GROUPED or B_STEPS > 0
    KIND: tl.constexpr = tl.int32 if INTEGER else tl.float32
    total = tl.zeros([BLOCK_N, STEPS], dtype=tl.float32 if SCALED else KIND)
    unset = tl.zeros([BLOCK_N, STEPS], dtype=KIND)
    column, step = tl.arange(0, BLOCK_K)[None, :], tl.arange(0, STEPS)
    if B_STEPS > 0:  # asked for a turn before it is needed
        next_scale = tl.load(scales)[:, None]
    for turn in range(turns):
        start, ahead = turn * BLOCK_K, tl.minimum(turn + 1, turns - 1)
        if EVEN_K:
            taken = tl.load(weight + start)
        else:
            taken = tl.load(weight + start, mask=column < k - start, other=0.0)
        if WIDEN != "":
            taken = widened(taken, given.dtype, WIDEN)
        product = tl.dot(taken, tl.trans(given), unset, out_dtype=KIND)
        if SCALED:
            factor = tl.where((step == turn)[None, :], tl.trans(own_scales), 0.0)
            if B_STEPS > 0:
                factor *= next_scale
                next_scale = tl.load(scales + ahead // B_STEPS * scale_group)[:, None]
            total += product.to(tl.float32) * factor
        else:
            total += tl.where((step == turn)[None, :], product, 0)
    return tl.sum(total, axis=1).to(tl.float32)


@triton.jit
def scaled(found, scale, weight_scale, bias, columns, A_STEPS: tl.constexpr, B_STEPS: tl.constexpr,
           WIDEN: tl.constexpr, UNIT: tl.constexpr, HAS_BIAS: tl.constexpr):  # fmt: skip
    """Return a sum times what is constant along K, plus the bias.

    weight_scale points to the scales of the columns, bias to that of an expert.
    """
    if A_STEPS == 0 and WIDEN == "":
        found *= scale
    if B_STEPS == 0:
        found *= tl.load(weight_scale)
    if UNIT != 1.0:
        found *= UNIT
    if HAS_BIAS:
        found += tl.load(bias + columns).to(tl.float32)
    return found


@triton.jit(do_not_specialize=["num_experts", "top_k"])
def scaled_pairs(x, weight, out, weight_scale, bias, ids, weights, sums, counters, num_experts,
                 top_k, n, k, stride_x, scale_expert, scale_row, scale_group,
                 A_STEPS: tl.constexpr, B_STEPS: tl.constexpr, B_ROWS: tl.constexpr,
                 WIDEN: tl.constexpr, UNIT: tl.constexpr, INTEGER: tl.constexpr,
                 HAS_BIAS: tl.constexpr, EVEN_K: tl.constexpr, STEPS: tl.constexpr,
                 BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, SPEC: tl.constexpr,
                 GATHERS: tl.constexpr, NAME: tl.constexpr, ORDER: tl.constexpr,
                 TOP_K: tl.constexpr, PAIRS: tl.constexpr, EARLY: tl.constexpr):  # fmt: skip
    """Compute a pair's product with its expert of [E, N, K], and what belongs to its end.

    Constants as for ``scaled_experts``. SPEC: range, PTX and scale, as ``Encoding`` has them. With
    ORDER ``out`` gets what w2 takes; with TOP_K, ``sums`` gets what ``sum_of_pairs`` makes of
    ``out``. PAIRS: a power of two, TOP_K or more.
    """
    if EARLY:
        wait_for_kernel_before()
    pair, left = own_tile(n, BLOCK_N)
    sent = tl.load(ids + pair).to(tl.int64)
    is_known = (sent >= 0) & (sent < num_experts)
    # Where there is no expert there is no turn; whoever adds up counts on each program.
    expert, turns = tl.where(is_known, sent, 0), tl.where(is_known, tl.cdiv(k, BLOCK_K), 0)
    if TOP_K > 0:
        token = pair // TOP_K
        shares, has_expert = shares_of(ids, weights, token, num_experts, TOP_K, PAIRS)
    columns = columns_of(left, n, ORDER, BLOCK_N)
    x += (pair // top_k if GATHERS else pair).to(tl.int64) * stride_x
    given, scale = row_of_pair(x, k, STEPS, BLOCK_K, A_STEPS > 0, WIDEN, SPEC,
                               weight.dtype.element_ty)  # fmt: skip
    weight += expert * n * k + columns.to(tl.int64)[:, None] * k + tl.arange(0, BLOCK_K)[None, :]
    weight_scale += expert * scale_expert + columns // B_ROWS * scale_row
    found = sum_of_steps(given, scale, weight, weight_scale, k, turns, scale_group, A_STEPS > 0,
                         B_STEPS, WIDEN, INTEGER, EVEN_K, STEPS, BLOCK_N, BLOCK_K)  # fmt: skip
    if HAS_BIAS:
        bias += expert * n
    found = scaled(
        found, scale, weight_scale, bias, columns, A_STEPS, B_STEPS, WIDEN, UNIT, HAS_BIAS
    )
    if ORDER != "":
        store_gated(found, out, pair, is_known, left, n, NAME, ORDER, SPEC[2], BLOCK_N)
    else:
        place = left + tl.arange(0, BLOCK_N)
        at, inside = out + pair.to(tl.int64) * n + place, place < tl.where(is_known, n, 0)
        tl.store(at, found.to(out.dtype.element_ty), mask=inside)
    if TOP_K > 0:
        add_up_when_last(out, shares, has_expert, sums, counters, token, left, n, TOP_K, PAIRS,
                         BLOCK_N)  # fmt: skip
