"""What becomes of sums: parts are added up (packed_kernel's too), results rounded and stored."""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, tma

# The second names are those of Triton 3.6.
barrier = gl.barrier if hasattr(gl, "barrier") else gl.thread_barrier
start_store = tma.async_store if hasattr(tma, "async_store") else tma.async_copy_shared_to_global


@gluon.jit
def sum_of_parts(total, partial, counters, tile, part, parts, HEIGHT: gl.constexpr,
                 WIDTH: gl.constexpr, LAYOUT: gl.constexpr):  # fmt: skip
    """Store this part; return whether it was the last of its tile, which then has the whole sum."""
    rows = gl.arange(0, HEIGHT, layout=gl.SliceLayout(1, LAYOUT))
    columns = gl.arange(0, WIDTH, layout=gl.SliceLayout(0, LAYOUT))
    at = gl.expand_dims(rows, 1) * WIDTH + gl.expand_dims(columns, 0)
    place = partial + tile.to(gl.int64) * parts * (HEIGHT * WIDTH) + at
    gl.store(place + part * (HEIGHT * WIDTH), total)
    barrier()
    is_last = gl.atomic_add(counters + tile, 1, sem="acq_rel", scope="gpu") == parts - 1
    if is_last:
        gl.store(counters + tile, 0)
        total = gl.zeros([HEIGHT, WIDTH], gl.float32, LAYOUT)
        for number in range(parts):
            total += gl.load(place + number * (HEIGHT * WIDTH), cache_modifier=".cg")
    return total, is_last


@gluon.jit
def with_bias(total, bias, left, n, COLUMNS: gl.constexpr, HAS_BIAS: gl.constexpr):
    """Return the sum with the bias added."""
    if HAS_BIAS:
        columns = left + gl.arange(0, COLUMNS, layout=gl.SliceLayout(0, total.type.layout))
        added = gl.load(bias + columns, mask=columns < n, other=0.0).to(gl.float32)
        total += gl.expand_dims(added, 0)
    return total


@gluon.jit
def store(result, out, top, left, m, n, ROWS: gl.constexpr, COLUMNS: gl.constexpr):
    """Round once and store, 16 bytes a thread."""
    STORE: gl.constexpr = gl.BlockedLayout([1, 8], [256 // COLUMNS, COLUMNS // 8], [4, 1], [1, 0])
    result = gl.convert_layout(result.to(out.dtype.element_ty), STORE)
    rows = top + gl.arange(0, ROWS, layout=gl.SliceLayout(1, STORE))
    columns = left + gl.arange(0, COLUMNS, layout=gl.SliceLayout(0, STORE))
    rows, columns = gl.expand_dims(rows, 1), gl.expand_dims(columns, 0)
    at = out + rows.to(gl.int64) * n + columns
    gl.store(at, result, mask=(rows < m) & (columns < n))


@gluon.jit
def store_by_copy(result, out, buffer, top, left):
    """Round once and let the copy engine store, as soon as it has read what it stored before."""
    tma.store_wait(0)
    barrier()
    buffer.store(result.to(out.dtype))
    fence_async_shared()
    start_store(out, [top, left], buffer)


@gluon.jit
def store_by_copies(result, out, buffer, top, left):
    """Store by the copy engine, in two halves where ``buffer`` holds no more."""
    WIDTH: gl.constexpr = out.block_type.shape[1]
    HALVES: gl.constexpr = result.shape[1] == 2 * WIDTH
    if HALVES:
        apart = gl.permute(gl.reshape(result, [result.shape[0], 2, WIDTH]), (0, 2, 1))
        first, second = gl.split(apart)
        store_by_copy(first, out, buffer, top, left)
        store_by_copy(second, out, buffer, top, left + WIDTH)
    else:
        store_by_copy(result, out, buffer, top, left)
