"""Scales and zero points of packed_kernel, copied to shared memory as early as the words are.

Read from memory by the warps that multiply, those of each step would be waited for at its start.
Scales that are bytes lie in blocks as words do (quantdock_triton.packed_scale_layout).
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy

from quantdock_cuda.packed_units import GROUP

# The second name is that of Triton 3.6.
start_load = getattr(async_copy, "async_load", None) or async_copy.async_copy_global_to_shared

# Triton 3.6 has it under a name with an underscore.
_IS_PUBLIC = gl.constexpr(hasattr(gl.shared_memory_descriptor, "reinterpret"))


@gluon.jit
def room_for_factors(factors, FORM: gl.constexpr):
    """Return room for those of the steps whose words have slots, and of the step before.

    Words are free once they are read, factors when their step ends. It is counted in what is copied
    at once: one of f32, or two of float16.
    """
    LAYOUT: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    SLOTS: gl.constexpr = (FORM.stages + 1) * (FORM.planes // FORM.run)
    ROWS: gl.constexpr = FORM.factor_rows
    if factors.dtype.element_ty == gl.float16:
        return gl.allocate_shared_memory(gl.int32, [SLOTS, ROWS // 2], LAYOUT)
    else:
        return gl.allocate_shared_memory(gl.float32, [SLOTS, ROWS], LAYOUT)


@gluon.jit
def room_for_bytes(FORM: gl.constexpr):
    """Return room for the bytes of as many steps, those of each group of rows apart."""
    LAYOUT: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    SLOTS: gl.constexpr = (FORM.stages + 1) * FORM.groups
    return gl.allocate_shared_memory(gl.int32, [SLOTS, FORM.pieces * GROUP], LAYOUT)


@gluon.jit
def copy_bytes(stored, buffer, turn, left, step, n, steps, FORM: gl.constexpr, origin=0):
    """Ask for the bytes of a step, 16 of them a thread; rows beyond the last have the last's.

    ``origin`` is the first row of blocks of the weight.
    """
    GROUPS: gl.constexpr = FORM.groups
    SIZE: gl.constexpr = FORM.pieces * GROUP
    EACH: gl.constexpr = gl.BlockedLayout([4], [32], [1], [0])
    for group in gl.static_range(GROUPS):
        block = origin + gl.minimum(left // GROUP + group, (n - 1) // GROUP)
        at = stored + (block * steps + step).to(gl.int64) * SIZE
        slot = buffer.index(turn % (FORM.stages + 1) * FORM.groups + group)
        start_load(slot, at + gl.arange(0, SIZE, layout=EACH))


@gluon.jit
def read_bytes(buffer, turn, FORM: gl.constexpr, PART: gl.constexpr, LAYOUT: gl.constexpr):
    """Return those of a step for 64 rows, one int32 for each piece of a plane: 1, 2 or 4."""
    PIECES: gl.constexpr = FORM.pieces
    slot = buffer.index(turn % (FORM.stages + 1) * FORM.groups + PART)
    found = ()
    for piece in gl.static_range(PIECES):
        own = slot.slice(piece * GROUP, GROUP).load(gl.SliceLayout(1, LAYOUT))
        found = found + (own,)  # noqa: RUF005
    return found


@gluon.jit
def places_of(given, left, n, FORM: gl.constexpr, begin=0):
    """Return where the scales of a unit's rows are, and the zero points if there are some.

    Those of the weight begin at ``begin`` in what is given.
    """
    scale, zero, _, strides, _ = given
    scale += begin
    if zero is not None:
        zero += begin
    EACH: gl.constexpr = gl.BlockedLayout([1], [32], [1], [0])
    ROWS: gl.constexpr = FORM.factor_rows
    if scale.dtype.element_ty == gl.float16:
        pairs = gl.minimum(left // 2 + gl.arange(0, ROWS // 2, layout=EACH), (n - 1) // 2)
        scale_at = scale.to(gl.pointer_type(gl.int32), bitcast=True) + pairs
        zero_at = scale_at
        if zero is not None:
            zero_at = zero.to(gl.pointer_type(gl.int32), bitcast=True) + pairs
    else:
        rows = gl.minimum(left + gl.arange(0, ROWS, layout=EACH), n - 1)
        scale_at = scale + rows // FORM.scale_rows * strides[1]
        zero_at = scale_at
        if zero is not None:
            zero_at = zero + rows
    return scale_at, zero_at


@gluon.jit
def copy_factors(places, buffer, turn, step, groups, stride, FORM: gl.constexpr):
    """Ask for those of the groups of a step; planes that fill up the edge are the last group's.

    ``stride`` is the distance of two groups in what ``places`` point to.
    """
    COUNT: gl.constexpr = FORM.planes // FORM.run
    for piece in gl.static_range(COUNT):
        group = (step * FORM.planes + piece * FORM.run) // FORM.per_group
        at = places + gl.minimum(group, groups - 1).to(gl.int64) * stride
        start_load(buffer.index(turn % (FORM.stages + 1) * COUNT + piece), at)


@gluon.jit
def read_factors(buffer, turn, FORM: gl.constexpr, PART: gl.constexpr, LAYOUT: gl.constexpr):
    """Return those of the groups of a step for 64 rows, as f32: 1, 2 or 4."""
    COUNT: gl.constexpr = FORM.planes // FORM.run
    SLOTS: gl.constexpr = (FORM.stages + 1) * COUNT
    rows = buffer
    if buffer.dtype == gl.int32:
        SHAPE: gl.constexpr = [SLOTS, FORM.factor_rows]
        if _IS_PUBLIC:
            rows = buffer.reinterpret(gl.float16, SHAPE, buffer.layout)
        else:
            rows = buffer._reinterpret(gl.float16, SHAPE, buffer.layout)
    found = ()
    for piece in gl.static_range(COUNT):
        slot = rows.index(turn % (FORM.stages + 1) * COUNT + piece)
        own = slot.slice(PART * GROUP, GROUP).load(gl.SliceLayout(1, LAYOUT)).to(gl.float32)
        found = found + (own,)  # noqa: RUF005
    return found
