"""Words that packed_stream_kernel is about to read, asked for while the kernel before ends."""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from quantdock_cuda.packed_stream_scales import BLOCK


@gluon.constexpr_function
def lines_layout(form):
    """Return who asks for which rows of words [shares, rows]."""
    return gl.BlockedLayout([1, 1], [1, 32], [form.shares, form.across], [1, 0])


@gluon.jit
def bring_near(words, left, steps, first, last, turns, FORM: gl.constexpr):
    """Have the cache read the words of some turns after the first."""
    LAYOUT: gl.constexpr = lines_layout(FORM)
    PAIRS: gl.constexpr = FORM.plane // 2
    AHEAD: gl.constexpr = FORM.ahead
    row = gl.arange(0, FORM.rows, layout=gl.SliceLayout(0, LAYOUT))
    at = row * PAIRS
    if FORM.rows > BLOCK:
        at = row // BLOCK * steps * (BLOCK * PAIRS) + row % BLOCK * PAIRS
    words = words.to(gl.pointer_type(gl.int32), bitcast=True)
    words += (left // BLOCK).to(gl.int64) * steps * (BLOCK * PAIRS) + left % BLOCK * PAIRS
    lines = words + gl.expand_dims(at, 0)
    share = first + gl.arange(0, FORM.shares, layout=gl.SliceLayout(1, LAYOUT))
    for turn in gl.static_range(1, AHEAD + 1):
        if turn < turns:
            step = gl.minimum(share + turn * FORM.shares, last - 1)
            places = lines + gl.expand_dims(step * (BLOCK * PAIRS), 1)
            gl.inline_asm_elementwise("prefetch.global.L2 [$1]; mov.b32 $0, 0;", "=r,l", [places],
                                      dtype=gl.int32, is_pure=False, pack=1)  # fmt: skip
