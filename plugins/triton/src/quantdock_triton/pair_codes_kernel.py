"""Codes of each expert's rows by a scale that the expert has, in Triton."""

from __future__ import annotations

import triton
import triton.language as tl

from quantdock_triton.encode_kernel import SMALLEST_SCALE, encode, load, wide
from quantdock_triton.quantize_kernel import wait_for_kernel_before
from quantdock_triton.route_kernel import expert_of, tile_of


@triton.jit(do_not_specialize=["num_experts", "num_tiles", "top_k"])
def quantize_pairs(x, codes, scales, input_scale, plan, order, num_experts, num_tiles, top_k, k,
                   stride_x, NUM: tl.constexpr, NUM_WIDTH: tl.constexpr, DIRECT: tl.constexpr,
                   GATHERS: tl.constexpr, BLOCK_M: tl.constexpr, WIDTH: tl.constexpr,
                   LOWEST: tl.constexpr, LARGEST: tl.constexpr, PTX: tl.constexpr,
                   EARLY: tl.constexpr):  # fmt: skip
    """Quantize WIDTH columns of a tile's rows with the largest of its expert's NUM scales."""
    if EARLY:
        wait_for_kernel_before()
    tile = tl.program_id(0)
    expert = expert_of(plan, tile, num_experts, DIRECT)
    if expert < 0:
        return
    rows, places, has_row = tile_of(plan, order, tile, num_tiles, top_k, DIRECT, GATHERS, False,
                                    BLOCK_M)  # fmt: skip
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
