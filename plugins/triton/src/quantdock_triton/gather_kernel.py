"""Rows of tokens where the pairs that were sorted by expert need them, in Triton."""

from __future__ import annotations

import triton
import triton.language as tl

from quantdock_triton.quantize_kernel import wait_for_kernel_before


@triton.jit(do_not_specialize=["top_k"])
def gather_rows(x, out, order, count, top_k, k, stride_x, ROWS: tl.constexpr, WIDTH: tl.constexpr,
                EARLY: tl.constexpr):  # fmt: skip
    """Copy WIDTH columns of the tokens of ROWS pairs to ``out`` [pairs, K], of ``count[0]`` pairs.

    EARLY: start while the kernel before ends.
    """
    if EARLY:
        wait_for_kernel_before()
    places = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    columns = (tl.program_id(1) * WIDTH + tl.arange(0, WIDTH))[None, :]
    is_there = places < tl.load(count)
    rows = tl.load(order + places, mask=is_there, other=0) // top_k
    inside = is_there[:, None] & (columns < k)
    found = tl.load(x + rows.to(tl.int64)[:, None] * stride_x + columns, mask=inside)
    tl.store(out + places.to(tl.int64)[:, None] * k + columns, found, mask=inside)
