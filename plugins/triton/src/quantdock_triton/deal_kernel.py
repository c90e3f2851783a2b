"""Columns dealt out: every other one of a block, then those between, in Triton."""

from __future__ import annotations

import triton
import triton.language as tl

from quantdock_triton.quantize_kernel import wait_for_kernel_before


@triton.jit
def deal_columns(x, out, k, stride, PLANE: tl.constexpr, WIDTH: tl.constexpr, EARLY: tl.constexpr):
    """Write WIDTH columns of a row of ``x`` to ``out`` [M, K], in blocks of two times PLANE."""
    if EARLY:
        wait_for_kernel_before()
    row, pairs = tl.program_id(0).to(tl.int64), tl.arange(0, WIDTH // 2)
    first = tl.program_id(1) * WIDTH
    column = first + tl.arange(0, WIDTH)
    values = tl.load(x + row * stride + column, mask=column < k, other=0.0)
    even, odd = tl.split(tl.reshape(values, [WIDTH // 2, 2]))
    to = first + pairs // PLANE * (2 * PLANE) + pairs % PLANE
    at = out + row * k + to
    tl.store(at, even, mask=to < k)
    tl.store(at + PLANE, odd, mask=to < k)
