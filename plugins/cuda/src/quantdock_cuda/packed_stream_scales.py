"""Scales and zero points of packed_stream_kernel, read a turn before they are needed.

Those of integers are numbers of a group for each row. Scales of floats are bytes that lie in blocks
as their words do (quantdock_triton.packed_scale_layout): a thread reads those of its words.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from quantdock_cuda.packed_stream_operand import along, axis, bytes_layout, words_layout

BLOCK = gl.constexpr(64)  # rows of a block of words


@gluon.jit
def values_of(values, step, last, groups, stride, PLACE: gl.constexpr, FORM: gl.constexpr):
    """Return the scales or zero points of the group that a place of a step belongs to.

    Planes that fill up the edge belong to the last group. Numbers of float16 are kept as int32, for
    ``floats_of``: compilers put two of 16 bits into one register, where they are waited for. Sums
    of two turns do not wait again, and rather have the registers.
    """
    plane = gl.minimum(step, last - 1) * FORM.planes + PLACE
    group = gl.minimum(plane // FORM.per_group, groups - 1)
    found = gl.load(values + gl.expand_dims(group.to(gl.int64) * stride, 1))
    if found.dtype == gl.float16 and FORM.ahead == 0:
        return gl.inline_asm_elementwise("cvt.u32.u16 $0, $1;", "=r,h", [found], dtype=gl.int32,
                                         is_pure=True, pack=1)  # fmt: skip
    else:
        return found


@gluon.jit
def floats_of(values):
    """Return what ``values_of`` has read as f32."""
    if values.dtype == gl.int32:
        PTX: gl.constexpr = "{ .reg .b16 half; cvt.u16.u32 half, $1; cvt.f32.f16 $0, half; }"
        return gl.inline_asm_elementwise(PTX, "=f,r", [values], dtype=gl.float32, is_pure=True,
                                         pack=1)  # fmt: skip
    else:
        return values.to(gl.float32)


@gluon.jit
def groups_of(values, step, last, groups, stride, FORM: gl.constexpr):
    """Return the scales or zero points of all groups of a step; none if a row has one."""
    PLANES: gl.constexpr = FORM.planes
    RUN: gl.constexpr = FORM.run
    found = ()
    if FORM.per_group > 0 and values is not None:
        for place in gl.static_range(0, PLANES, RUN):
            own = values_of(values, step, last, groups, stride, place, FORM)
            found = found + (own,)  # noqa: RUF005
    return found


@gluon.jit
def rows_at(values, left, n, FORM: gl.constexpr, LAYOUT: gl.constexpr):
    """Return where the scales or zero points [1, rows] of the first group are."""
    row = gl.arange(0, FORM.rows, layout=axis(LAYOUT, 1))
    if not FORM.whole_rows:
        row = gl.minimum(row, n - 1 - left)
    return values + left + gl.expand_dims(row, 0)


@gluon.jit
def first_zeros(zero, share, last, groups, stride, FORM: gl.constexpr):
    """Return the zero points of the first turn."""
    WORDS: gl.constexpr = words_layout(FORM)
    if zero is None:
        shape: gl.constexpr = [FORM.shares, FORM.rows]
        found = (gl.full(shape, FORM.middle, gl.float32, gl.SliceLayout(2, WORDS)),)
    elif FORM.per_group == 0:
        found = (gl.load(zero),)
    else:
        found = groups_of(zero, share, last, groups, stride, FORM)
    return found


@gluon.jit
def bytes_at(stored, left, steps, FORM: gl.constexpr):
    """Return where the bytes [1, rows, pieces] of a block's first step are, if scales are bytes."""
    if FORM.pieces > 0:
        LAYOUT: gl.constexpr = bytes_layout(FORM)
        row = gl.arange(0, FORM.rows, layout=axis(LAYOUT, 1))
        piece = gl.arange(0, FORM.pieces, layout=axis(LAYOUT, 2))
        stored += (left // BLOCK).to(gl.int64) * steps * (BLOCK * FORM.pieces) + left % BLOCK
        return stored + along(row, 1) + along(piece * BLOCK, 2)
    else:
        return ()


@gluon.jit
def bytes_of(stored, first, turn, turns, last, FORM: gl.constexpr):
    """Return the bytes of each share's step of a turn, as ``words_of`` does its words."""
    if FORM.pieces > 0:
        LAYOUT: gl.constexpr = bytes_layout(FORM)
        share = first + gl.arange(0, FORM.shares, layout=axis(LAYOUT, 0))
        step = gl.minimum(share + turn * FORM.shares, last - 1)
        at = stored + along(step * (BLOCK * FORM.pieces), 0)
        return gl.load(at, mask=gl.full(at.shape, turn < turns, gl.int1, LAYOUT))
    else:
        return ()
