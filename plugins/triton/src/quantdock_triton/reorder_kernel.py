"""Columns of x in another order, times factors, in Triton."""

from __future__ import annotations

import triton
import triton.language as tl

from quantdock_triton.quantize_kernel import wait_for_kernel_before


@triton.jit
def reorder_columns(x, order, factor, out, k, stride, WIDTH: tl.constexpr, EARLY: tl.constexpr):
    """Write WIDTH columns of a row to ``out`` [M, K]: x * factor, from where ``order`` says."""
    if EARLY:
        wait_for_kernel_before()
    row, column = tl.program_id(0).to(tl.int64), tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    mask = column < k
    source = column
    if order is not None:
        source = tl.load(order + column, mask=mask, other=0)
    value = tl.load(x + row * stride + source, mask=mask, other=0.0)
    if factor is not None:
        by = tl.load(factor + source, mask=mask, other=0.0)
        value = (value.to(tl.float32) * by).to(out.dtype.element_ty)
    tl.store(out + row * k + column, value, mask=mask)
