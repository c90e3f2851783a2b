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


@gluon.jit
def room_for_factors(FORM: gl.constexpr):
    """Return room for those of the steps whose words have slots, and of the step before.

    Words are free once they are read, factors when their step ends.
    """
    LAYOUT: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    SLOTS: gl.constexpr = (FORM.stages + 1) * (FORM.planes // FORM.run)
    return gl.allocate_shared_memory(gl.float32, [SLOTS, FORM.factor_rows], LAYOUT)


@gluon.jit
def room_for_bytes(FORM: gl.constexpr):
    """Return room for the bytes of as many steps, those of each group of rows apart."""
    LAYOUT: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    SLOTS: gl.constexpr = (FORM.stages + 1) * FORM.groups
    return gl.allocate_shared_memory(gl.int32, [SLOTS, FORM.pieces * GROUP], LAYOUT)


@gluon.jit
def copy_bytes(stored, buffer, turn, left, step, n, steps, FORM: gl.constexpr):
    """Ask for the bytes of a step, 16 of them a thread; rows beyond the last have the last's."""
    GROUPS: gl.constexpr = FORM.groups
    SIZE: gl.constexpr = FORM.pieces * GROUP
    EACH: gl.constexpr = gl.BlockedLayout([4], [32], [1], [0])
    for group in gl.static_range(GROUPS):
        block = gl.minimum(left // GROUP + group, (n - 1) // GROUP)
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
def places_of(given, left, n, FORM: gl.constexpr):
    """Return where the scales of a unit's rows are, and the zero points if there are some."""
    scale, zero, _, strides, _ = given
    EACH: gl.constexpr = gl.BlockedLayout([1], [32], [1], [0])
    rows = gl.minimum(left + gl.arange(0, FORM.factor_rows, layout=EACH), n - 1)
    scale_at = scale + rows // FORM.scale_rows * strides[1]
    zero_at = scale_at
    if zero is not None:
        zero_at = zero + rows
    return scale_at, zero_at


@gluon.jit
def copy_factors(places, buffer, turn, step, groups, stride, FORM: gl.constexpr):
    """Ask for those of the groups of a step; planes that fill up the edge are the last group's."""
    COUNT: gl.constexpr = FORM.planes // FORM.run
    for piece in gl.static_range(COUNT):
        group = (step * FORM.planes + piece * FORM.run) // FORM.per_group
        at = places + gl.minimum(group, groups - 1).to(gl.int64) * stride
        start_load(buffer.index(turn % (FORM.stages + 1) * COUNT + piece), at)


@gluon.jit
def read_factors(buffer, turn, FORM: gl.constexpr, PART: gl.constexpr, LAYOUT: gl.constexpr):
    """Return those of the groups of a step for 64 rows: 1, 2 or 4."""
    COUNT: gl.constexpr = FORM.planes // FORM.run
    found = ()
    for piece in gl.static_range(COUNT):
        slot = buffer.index(turn % (FORM.stages + 1) * COUNT + piece)
        own = slot.slice(PART * GROUP, GROUP).load(gl.SliceLayout(1, LAYOUT))
        found = found + (own,)  # noqa: RUF005
    return found
