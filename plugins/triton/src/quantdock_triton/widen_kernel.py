"""Whole weights of 8-bit codes as 16- or 32-bit numbers, for products that a library computes."""

from __future__ import annotations

import triton
import triton.language as tl

from quantdock_triton.matmul_kernel import widened


@triton.jit
def widen_weight(codes, scale, out, n, k, scale_row, scale_group, ROWS: tl.constexpr,
                 COLUMNS: tl.constexpr, KIND: tl.constexpr, UNIT: tl.constexpr,
                 HEIGHT: tl.constexpr, WIDTH: tl.constexpr):  # fmt: skip
    """Store scale * code, rounded once. ROWS x COLUMNS codes share a scale; COLUMNS 0: all of K."""
    rows = (tl.program_id(0) * HEIGHT + tl.arange(0, HEIGHT))[:, None]
    columns = (tl.program_id(1) * WIDTH + tl.arange(0, WIDTH))[None, :]
    inside = (rows < n) & (columns < k)
    at = rows.to(tl.int64) * k + columns
    values = widened(tl.load(codes + at, mask=inside, other=0), tl.float32, KIND)
    place = scale + rows // ROWS * scale_row
    if COLUMNS > 0:
        place += columns // COLUMNS * scale_group
    values *= tl.load(place, mask=inside, other=0.0) * UNIT
    tl.store(out + at, values.to(out.dtype.element_ty), mask=inside)
