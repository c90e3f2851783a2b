"""Codes of the rows that each expert multiplies, sorted by expert, in Triton."""

from __future__ import annotations

import triton
import triton.language as tl

from quantdock_triton.encode_kernel import SMALLEST_SCALE, encode, load, wide
from quantdock_triton.quantize_kernel import wait_for_kernel_before
from quantdock_triton.route_kernel import tile_of


@triton.jit(do_not_specialize=["num_experts", "num_tiles", "top_k"])
def quantize_pairs(x, codes, scales, input_scale, plan, order, num_experts, num_tiles, top_k, k,
                   stride_x, NUM: tl.constexpr, NUM_WIDTH: tl.constexpr, DIRECT: tl.constexpr,
                   GATHERS: tl.constexpr, BLOCK_M: tl.constexpr, WIDTH: tl.constexpr,
                   LOWEST: tl.constexpr, LARGEST: tl.constexpr, PTX: tl.constexpr,
                   EARLY: tl.constexpr):  # fmt: skip
    """Quantize WIDTH columns of a tile's rows with the largest of its expert's NUM scales."""
    if EARLY:
        wait_for_kernel_before()
    expert, rows, places, has_row = tile_of(plan, order, tl.program_id(0), num_experts, num_tiles,
                                            top_k, DIRECT, GATHERS, False, BLOCK_M)  # fmt: skip
    if expert < 0:
        return
    index = tl.arange(0, NUM_WIDTH)
    own = tl.load(input_scale + expert * NUM + index, mask=index < NUM, other=0.0)
    scale = tl.max(own, axis=0)
    if tl.program_id(1) == 0:
        tl.store(scales + places, tl.zeros([BLOCK_M], dtype=tl.float32) + scale, mask=has_row)
    columns = (tl.program_id(1) * WIDTH + tl.arange(0, WIDTH))[None, :]
    inside = has_row[:, None] & (columns < k)
    values = wide(load(x + rows[:, None] * stride_x + columns, inside, k, False, PTX), PTX)
    # A stored scale of 0 marks zeros; 0 / 0 would be NaN.
    found = encode(values, tl.maximum(scale, SMALLEST_SCALE), x.dtype.element_ty, True, LOWEST,
                   LARGEST, PTX, codes.dtype.element_ty)  # fmt: skip
    tl.store(codes + places[:, None] * k + columns, found, mask=inside)


@triton.jit(do_not_specialize=["num_experts", "num_tiles", "top_k", "scale_group", "sorted_group"])
def gather_codes(codes, scales, sorted_codes, sorted_scales, plan, order, num_experts, num_tiles,
                 top_k, k, groups, scale_row, scale_group, sorted_group, BLOCK_M: tl.constexpr,
                 WIDTH: tl.constexpr, GROUPS: tl.constexpr, EARLY: tl.constexpr):  # fmt: skip
    """Copy WIDTH codes, given as bytes, of a tile's tokens to where its pairs are, and scales."""
    if EARLY:
        wait_for_kernel_before()
    expert, rows, places, has_row = tile_of(plan, order, tl.program_id(0), num_experts, num_tiles,
                                            top_k, False, True, False, BLOCK_M)  # fmt: skip
    if expert < 0:
        return
    columns = (tl.program_id(1) * WIDTH + tl.arange(0, WIDTH))[None, :]
    inside = has_row[:, None] & (columns < k)
    found = tl.load(codes + rows[:, None] * k + columns, mask=inside, other=0)
    tl.store(sorted_codes + places[:, None] * k + columns, found, mask=inside)
    if tl.program_id(1) == 0:
        group = tl.arange(0, GROUPS)[None, :]
        known = has_row[:, None] & (group < groups)
        at = scales + rows[:, None] * scale_row + group * scale_group
        values = tl.load(at, mask=known, other=0.0)
        tl.store(sorted_scales + places[:, None] + group * sorted_group, values, mask=known)
