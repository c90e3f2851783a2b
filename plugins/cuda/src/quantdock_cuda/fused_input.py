"""x in a kernel that multiplies it: read in 16 bits, and kept in shared memory as codes."""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared

from quantdock_cuda.block_kernel import STEP
from quantdock_cuda.block_result import barrier
from quantdock_triton.encode_kernel import encode, larger, scale_of, wide

AT_ONCE = gl.constexpr(8)  # steps of one row that are quantized at once
PLAIN = gl.constexpr(gl.SwizzledSharedLayout(1, 1, 1, [1, 0]))
PLAIN_ROW = gl.constexpr(gl.SwizzledSharedLayout(1, 1, 1, [0]))
# The other name is that of Triton 3.6.
HAS_REINTERPRET = gl.constexpr(hasattr(gl.shared_memory_descriptor, "reinterpret"))


@gluon.jit
def seen_as(memory, SHAPE: gl.constexpr, LAYOUT: gl.constexpr):
    """Return shared memory in another shape and layout."""
    if HAS_REINTERPRET:
        return memory.reinterpret(memory.dtype, SHAPE, LAYOUT)
    else:
        return memory._reinterpret(memory.dtype, SHAPE, LAYOUT)


@gluon.jit
def load_steps(x, stride_x, m, k, step, last, NEXT: gl.constexpr, ROWS: gl.constexpr,
               LAYOUT: gl.constexpr):  # fmt: skip
    """Return a step of x, [ROWS, STEP]; of one row AT_ONCE steps, every NEXT th, one below another.

    Values beyond x and from step ``last`` on are 0.
    """
    HEIGHT: gl.constexpr = AT_ONCE if ROWS == 1 else ROWS
    row = gl.expand_dims(gl.arange(0, HEIGHT, layout=gl.SliceLayout(1, LAYOUT)), 1)
    column = gl.expand_dims(gl.arange(0, STEP, layout=gl.SliceLayout(0, LAYOUT)), 0)
    if ROWS == 1:
        steps = step + NEXT * row
        columns = steps * STEP + column
        return gl.load(x + columns, mask=(steps < last) & (columns < k), other=0.0)
    else:
        columns = step * STEP + column
        inside = (row < m) & (columns < k) & (step < last)
        return gl.load(x + row.to(gl.int64) * stride_x + columns, mask=inside, other=0.0)


@gluon.jit
def scale_of_rows(x, stride_x, sizes, PIECES: gl.constexpr, AHEAD: gl.constexpr,
                  ROWS: gl.constexpr, ONE: gl.constexpr, TOP: gl.constexpr, CARRY: gl.constexpr,
                  PTX: gl.constexpr, LAYOUT: gl.constexpr):  # fmt: skip
    """Return the scale of each row of x; with ONE, that of all."""
    m, k, steps, _, _ = sizes
    STEPS: gl.constexpr = AT_ONCE if ROWS == 1 else 1
    most = gl.zeros([AT_ONCE if ROWS == 1 else ROWS, STEP], gl.float32, LAYOUT)
    for start in range(0, PIECES, AHEAD):
        pieces = ()
        for ahead in gl.static_range(AHEAD):
            step = (start + ahead) * STEPS
            pieces += (load_steps(x, stride_x, m, k, step, steps, 1, ROWS, LAYOUT),)
        for ahead in gl.static_range(AHEAD):
            most = larger(most, gl.abs(wide(pieces[ahead], PTX)))
    largest = gl.reduce(most, 1, larger)
    if ROWS == 1 or ONE:
        largest = gl.reduce(largest, 0, larger)
    return scale_of(largest, TOP, CARRY)


@gluon.jit
def largest_of(scales, NUM: gl.constexpr):
    """Return the largest of NUM scales."""
    scale = gl.load(scales)
    for index in gl.static_range(1, NUM):
        scale = gl.maximum(scale, gl.load(scales + index))
    return scale


@gluon.jit
def quantize(x, stride_x, made, scale, sizes, first, last, TURN: gl.constexpr, NEXT: gl.constexpr,
             PLAN: gl.constexpr, ROWS: gl.constexpr, WIDTH: gl.constexpr, NUM: gl.constexpr,
             SPEC: gl.constexpr, LAYOUT: gl.constexpr):  # fmt: skip
    """Keep the codes of every NEXT th step from TURN on; in groups their scales too.

    ``scale`` is that of all columns, where there is one. The rows of a slot that x does not have
    stay as they are: they make columns of the product that nobody reads. Row 0 of a slot lies as
    it would without swizzling.
    """
    codes, scales = made
    m, k, _, _, _ = sizes
    STEPS: gl.constexpr = AT_ONCE if ROWS == 1 else 1
    PIECES: gl.constexpr = PLAN.pieces
    AHEAD: gl.constexpr = PLAN.ahead
    TOP: gl.constexpr = SPEC[0]
    CARRY: gl.constexpr = SPEC[1]
    LOWEST: gl.constexpr = SPEC[2]
    LARGEST: gl.constexpr = SPEC[3]
    PTX: gl.constexpr = SPEC[4]
    if ROWS == 1:
        codes = seen_as(codes, [NEXT * PIECES, AT_ONCE, WIDTH * STEP], PLAIN)
        scales = seen_as(scales, [NEXT * PIECES, AT_ONCE], PLAIN_ROW)
    for start in range(0, PIECES, AHEAD):
        pieces = ()
        for ahead in gl.static_range(AHEAD):
            step = first + TURN + NEXT * STEPS * (start + ahead)
            pieces += (load_steps(x, stride_x, m, k, step, last, NEXT, ROWS, LAYOUT),)
        for ahead in gl.static_range(AHEAD):
            values, at = wide(pieces[ahead], PTX), TURN * PIECES + start + ahead
            factor = scale
            if PLAN.is_grouped:
                own = scale_of(gl.reduce(gl.abs(values), 1, larger), TOP, CARRY)
                scales.index(at).store(own)
                factor = gl.expand_dims(own, 1)
            found = encode(values, factor, x.dtype.element_ty, NUM > 0, LOWEST, LARGEST, PTX,
                           codes.dtype)  # fmt: skip
            if ROWS == 1:
                codes.index(at).slice(0, STEP, dim=1).store(found)
            else:
                codes.index(at).store(found)
    fence_async_shared()
    barrier()
