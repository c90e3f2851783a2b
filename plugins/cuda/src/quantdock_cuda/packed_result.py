"""What becomes of the sums of packed_kernel: parts are added up, results rounded and stored."""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from quantdock_cuda.block_result import barrier
from quantdock_cuda.packed_units import GROUP, room_of


@gluon.jit
def in_a_row(total, WIDTH: gl.constexpr):
    """Return a sum [64, WIDTH] in an order in which each thread has 16 bytes side by side."""
    split = gl.reshape(total, [4, 2, 8, WIDTH // 8, 4, 2])
    return gl.reshape(gl.permute(split, (3, 0, 2, 4, 1, 5)), [GROUP * WIDTH])


@gluon.jit
def in_rows(values, WIDTH: gl.constexpr, LAYOUT: gl.constexpr):
    """Return what ``in_a_row`` was given."""
    split = gl.reshape(values, [WIDTH // 8, 4, 8, 4, 2, 2])
    total = gl.reshape(gl.permute(split, (1, 4, 2, 0, 3, 5)), [GROUP, WIDTH])
    return gl.convert_layout(total, LAYOUT)


@gluon.jit
def store_part(total, place, counter, count, WIDTH: gl.constexpr):
    """Store this part of a tile's sum; return whether it was the last of them to arrive."""
    values = in_a_row(total, WIDTH)
    gl.store(place + gl.arange(0, GROUP * WIDTH, layout=values.type.layout), values)
    barrier()
    is_last = gl.atomic_add(counter, 1, sem="acq_rel", scope="gpu") == count - 1
    if is_last:
        gl.store(counter, 0)
    return is_last


@gluon.jit
def sum_of_parts(partial, lowest, count, FORM: gl.constexpr, PART: gl.constexpr,
                 LAYOUT: gl.constexpr):  # fmt: skip
    """Return the sum of all parts, in the order of their programs.

    As many are read at once as registers hold.
    """
    WIDTH: gl.constexpr = FORM.m
    AT_ONCE: gl.constexpr = 4 if WIDTH <= 32 else 2 if WIDTH <= 128 else 1
    found = in_a_row(gl.full([GROUP, WIDTH], 0.0, gl.float32, LAYOUT), WIDTH)
    places = partial + gl.arange(0, GROUP * WIDTH, layout=found.type.layout)
    for number in range(0, count, AT_ONCE):
        given = ()
        for more in gl.static_range(AT_ONCE):
            after = number + more
            at = places + room_of(lowest + after, after == 0, FORM, PART)
            one = gl.load(at, mask=after < count, other=0.0, cache_modifier=".cg")
            given = given + (one,)  # noqa: RUF005
        for more in gl.static_range(AT_ONCE):
            found += given[more]
    return in_rows(found, WIDTH, LAYOUT)


@gluon.jit
def scaled(total, given, columns, FORM: gl.constexpr, begin=0):
    """Return a whole sum, times the scales of rows that have one each, which begin at ``begin``.

    Not a part of one: the compiler may fuse a product with the sum of parts, and does so in some
    tiles only. ``rn`` keeps it from fusing this one with the bias.
    """
    scale, _, _, strides, _ = given
    if FORM.per_group == 0:
        at = columns // FORM.scale_rows * strides[1]
        factor = gl.expand_dims(gl.load(scale + begin + at).to(gl.float32), 1)
        total = gl.inline_asm_elementwise("mul.rn.f32 $0, $1, $2;", "=f,f,f", [total, factor],
                                          dtype=gl.float32, is_pure=True, pack=1)  # fmt: skip
    return total


@gluon.jit
def finish(total, out, bias, top, left, m, first_row, n, stride_out, WIDTH: gl.constexpr,
           LAYOUT: gl.constexpr, order=None, MOVED: gl.constexpr = False):  # fmt: skip
    """Add the bias, round once and store: 16 bytes a thread, or f32 as threads have them.

    Rows up to ``m`` go where ``order`` says, if there is one. MOVED: tiles lie at multiples of
    WIDTH, but for the last, which ends at ``m`` and has rows of the one before it.
    """
    STORE: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])
    if bias is not None:
        own = left + gl.arange(0, GROUP, layout=gl.SliceLayout(1, LAYOUT))
        total += gl.expand_dims(gl.load(bias + own, mask=own < n, other=0.0).to(gl.float32), 1)
    result = gl.permute(total.to(out.dtype.element_ty), (1, 0))
    if out.dtype.element_ty != gl.float32:  # eight threads have 32 bytes of a row side by side
        result = gl.convert_layout(result, STORE)
    PLACES: gl.constexpr = result.type.layout
    rows = top + gl.arange(0, WIDTH, layout=gl.SliceLayout(1, PLACES))
    columns = left + gl.arange(0, GROUP, layout=gl.SliceLayout(0, PLACES))
    own_rows, own_columns = rows < m, (columns >= first_row) & (columns < n)
    if MOVED:
        first_own = top + (-top & (WIDTH - 1))
        own_rows = (rows - first_own).to(gl.uint32) < (m - first_own).to(gl.uint32)
    mask = gl.expand_dims(own_rows, 1) & gl.expand_dims(own_columns, 0)
    if order is not None:
        rows = gl.load(order + rows, mask=rows < m, other=0)
    at = out + gl.expand_dims(rows, 1).to(gl.int64) * stride_out + gl.expand_dims(columns, 0)
    gl.store(at, result, mask=mask)
