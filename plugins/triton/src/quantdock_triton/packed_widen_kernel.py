"""Weights of fp4_e2m1 in words and bytes (packed_layout, packed_scale_layout) as floats, in Triton.

Scales hold a power of two more than they are, and that of a row makes up for it.
"""

from __future__ import annotations

import triton
import triton.language as tl

from quantdock_triton.packed_matmul_kernel import ROWS
from quantdock_triton.small_float_kernel import widened

E4M3 = tl.constexpr(0x500 << 20)  # what the exponent of a byte of e4m3 lacks of f32's


@triton.jit
def kept_scales(stored, PLACE: tl.constexpr, E8M0: tl.constexpr):
    """Return the scales of one place of words as they are kept, f32."""
    own = (stored >> (8 * PLACE)) & 0xFF
    if E8M0:
        return (own << 23).to(tl.float32, bitcast=True)
    else:
        return ((own << 20) | E4M3).to(tl.float32, bitcast=True)


@triton.jit(do_not_specialize=["first_row", "n", "steps"])
def widen_blocks(words, stored, scale, out, first_row, n, k, steps, PLANE: tl.constexpr,
                 PIECES: tl.constexpr, E8M0: tl.constexpr, BLOCK_N: tl.constexpr):  # fmt: skip
    """Write one block of rows ``first_row`` to ``n`` of the weight to ``out`` [rows, K]."""
    RUN: tl.constexpr = PLANE // PIECES
    step = tl.program_id(1)
    rows = first_row + tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    known = tl.minimum(rows, n - 1)
    block = (known // ROWS).to(tl.int64) * steps + step
    word, piece, row = tl.arange(0, PLANE)[None, :], tl.arange(0, PIECES)[None, :], known % ROWS
    taken = tl.load(words + ((block * ROWS + row) * PLANE)[:, None] + word)
    bytes_at = stored + (block * (PIECES * ROWS) + row)[:, None] + piece * ROWS
    of_places = tl.load(bytes_at)
    of_row = tl.load(scale + known)[:, None]
    at = out + (rows - first_row).to(tl.int64)[:, None] * k + word
    for place in tl.static_range(4):
        scales = kept_scales(of_places, place, E8M0)
        each = tl.broadcast_to(scales[:, :, None], [BLOCK_N, PIECES, RUN])
        each = tl.reshape(each, [BLOCK_N, PLANE])
        values = widened(taken, each, place, 4, 1, 1.0) * of_row  # bits of a code, of its fraction
        column = (step * 4 + place) * PLANE
        inside = (rows < n)[:, None] & (word < k - column)
        tl.store(at + column, values.to(out.dtype.element_ty), mask=inside)
