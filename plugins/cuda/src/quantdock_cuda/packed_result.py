"""What becomes of the sums of packed_kernel: they are rounded and stored."""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

GROUP = gl.constexpr(64)  # rows of the weight that four warps work on


@gluon.jit
def finish(total, out, bias, top, left, m, first_row, n, stride_out, WIDTH: gl.constexpr,
           LAYOUT: gl.constexpr):  # fmt: skip
    """Add the bias, round once and store, 16 bytes a thread."""
    STORE: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])
    if bias is not None:
        own = left + gl.arange(0, GROUP, layout=gl.SliceLayout(1, LAYOUT))
        total += gl.expand_dims(gl.load(bias + own, mask=own < n, other=0.0).to(gl.float32), 1)
    result = gl.permute(total.to(out.dtype.element_ty), (1, 0))
    result = gl.convert_layout(result, STORE)
    rows = top + gl.arange(0, WIDTH, layout=gl.SliceLayout(1, STORE))
    columns = left + gl.arange(0, GROUP, layout=gl.SliceLayout(0, STORE))
    mask = (gl.expand_dims(rows, 1) < m) & gl.expand_dims((columns >= first_row) & (columns < n), 0)
    at = out + gl.expand_dims(rows, 1).to(gl.int64) * stride_out + gl.expand_dims(columns, 0)
    gl.store(at, result, mask=mask)
