"""What becomes of the sums of packed_kernel: parts are added up, results rounded and stored."""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

# The second name is that of Triton 3.6.
barrier = gl.barrier if hasattr(gl, "barrier") else gl.thread_barrier
GROUP = gl.constexpr(64)  # rows of the weight that four warps work on


@gluon.jit
def sum_of_parts(total, partial, counters, tile, part, parts, WIDTH: gl.constexpr,
                 LAYOUT: gl.constexpr):  # fmt: skip
    """Store this part; return whether it was the last of its tile, which then has the whole sum."""
    rows = gl.arange(0, GROUP, layout=gl.SliceLayout(1, LAYOUT))
    columns = gl.arange(0, WIDTH, layout=gl.SliceLayout(0, LAYOUT))
    at = gl.expand_dims(rows, 1) * WIDTH + gl.expand_dims(columns, 0)
    place = partial + tile.to(gl.int64) * parts * (GROUP * WIDTH) + at
    gl.store(place + part * (GROUP * WIDTH), total)
    barrier()
    is_last = gl.atomic_add(counters + tile, 1, sem="acq_rel", scope="gpu") == parts - 1
    if is_last:
        gl.store(counters + tile, 0)
        total = gl.zeros([GROUP, WIDTH], gl.float32, LAYOUT)
        for number in range(parts):
            total += gl.load(place + number * (GROUP * WIDTH), cache_modifier=".cg")
    return total, is_last


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
