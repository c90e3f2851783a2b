"""Words and x as the operands of ``mma.sync``, without any exchange between threads.

Which column of a plane stands at which place of a product is free as long as both operands agree.
So the 16 bytes that a thread reads of a row, pairs of 16 bits that are neighbours, are what it
holds of two products: the first pair of each two stands in the first half of a product's columns,
the other in the second.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from quantdock_cuda.packed_operand import (
    constraints,
    instructions,
    power_below,
    scale_at,
    twice,
)

# Bits of the place in [shares, rows, plane / 2] that a thread's registers, and the threads of a
# warp, have: four threads read 16 bytes each of a row, and there are eight rows.
_PAIRS = [[0, 0, 1], [0, 0, 2]]
_QUADS = [[0, 0, 4], [0, 0, 8]]
HEIGHT = 8


@gluon.constexpr_function
def powers(first, end):
    """Return the powers of two from ``first`` to ``end``, exclusive."""
    return [1 << bit for bit in range(first.bit_length() - 1, end.bit_length() - 1)]


@gluon.constexpr_function
def words_layout(form):
    """Return who reads which pairs of words [shares, rows, plane / 2]."""
    registers = _PAIRS + [[0, 0, pair] for pair in powers(16, form.plane // 2)]
    registers += [[0, row, 0] for row in [HEIGHT, *powers(16 * form.across, form.rows)]]
    lanes = _QUADS + [[0, row, 0] for row in powers(1, HEIGHT)]
    warps = [[0, row, 0] for row in powers(16, 16 * form.across)]
    warps += [[share, 0, 0] for share in powers(1, form.shares)]
    shape = [form.shares, form.rows, form.plane // 2]
    return gl.DistributedLinearLayout(registers, lanes, warps, [], shape)


@gluon.constexpr_function
def pieces_layout(form):
    """Return that of words with the runs of scales apart [shares, rows, pieces, pairs of a run]."""
    each, whole = form.plane // 2 // form.pieces, words_layout(form)
    bases = [
        [[share, row, pair // each, pair % each] for share, row, pair in of]
        for of in (whole.reg_bases, whole.lane_bases, whole.warp_bases)
    ]
    shape = [form.shares, form.rows, form.pieces, each]
    return gl.DistributedLinearLayout(*bases, [], shape)


@gluon.constexpr_function
def bytes_layout(form):
    """Return who reads which bytes of scales [shares, rows, pieces]: those of its words."""
    return gl.SliceLayout(3, pieces_layout(form))


@gluon.constexpr_function
def x_layout(form):
    """Return who reads which pairs of x [shares, x_rows, plane / 2]."""
    registers = _PAIRS + [[0, 0, pair] for pair in powers(16, form.plane // 2)]
    registers += [[0, row, 0] for row in powers(HEIGHT, max(form.x_rows, HEIGHT))]
    lanes = _QUADS + [[0, row if row < form.x_rows else 0, 0] for row in powers(1, HEIGHT)]
    warps = [[0, 0, 0] for _ in powers(1, form.across)]
    warps += [[share, 0, 0] for share in powers(1, form.shares)]
    shape = [form.shares, form.x_rows, form.plane // 2]
    return gl.DistributedLinearLayout(registers, lanes, warps, [], shape)


@gluon.constexpr_function
def axis(layout, dim):
    """Return the layout of one of three dimensions."""
    inner, outer = [(2, 1), (2, 0), (1, 0)][dim]
    return gl.SliceLayout(outer, gl.SliceLayout(inner, layout))


@gluon.jit
def along(values, DIM: gl.constexpr):
    """Return values [n] as a tensor of three dimensions, along one of them."""
    if DIM == 0:
        return gl.expand_dims(gl.expand_dims(values, 1), 2)
    elif DIM == 1:
        return gl.expand_dims(gl.expand_dims(values, 0), 2)
    else:
        return gl.expand_dims(gl.expand_dims(values, 0), 1)


@gluon.jit
def in_order(pairs, ROWS: gl.constexpr, FORM: gl.constexpr, dtype: gl.constexpr):
    """Return pairs [shares, rows, plane / 2] as floats of 16 bits in the order of products."""
    QUARTERS: gl.constexpr = FORM.plane // 32
    low, high = gl.inline_asm_elementwise("mov.b32 {$0, $1}, $2;", "=h,=h,r", [pairs],
                                          dtype=(gl.int16, gl.int16), is_pure=True,
                                          pack=1)  # fmt: skip
    values = gl.join(low, high).to(dtype, bitcast=True)
    values = gl.reshape(values, [FORM.shares, ROWS, QUARTERS, 4, 2, 2, 2])
    values = gl.permute(values, (0, 1, 5, 3, 2, 4, 6))
    return gl.reshape(values, [FORM.shares, ROWS, FORM.plane])


@gluon.jit
def left_operand(words, zero, PLACE: gl.constexpr, FORM: gl.constexpr, dtype: gl.constexpr,
                 LAYOUT: gl.constexpr):  # fmt: skip
    """Return ``code - zero`` of the codes at one place of words [shares, rows, plane]."""
    LEFT: gl.constexpr = gl.DotOperandLayout(0, LAYOUT, FORM.plane // 8)
    PTX: gl.constexpr = instructions(PLACE, FORM, dtype)
    TAKEN: gl.constexpr = constraints(FORM)
    added = -power_below(FORM.bits, dtype) - zero
    if FORM.bits == 4:
        TWICE: gl.constexpr = twice(dtype)
        added = gl.inline_asm_elementwise(TWICE, "=r,f", [added], dtype=gl.int32, is_pure=True,
                                          pack=1)  # fmt: skip
        pairs = gl.inline_asm_elementwise(PTX, TAKEN, [words, gl.expand_dims(added, 2)],
                                          dtype=gl.int32, is_pure=True, pack=1)  # fmt: skip
    else:
        added = gl.expand_dims(added, 2)
        pairs = gl.inline_asm_elementwise(PTX, TAKEN, [words, added, added], dtype=gl.int32,
                                          is_pure=True, pack=1)  # fmt: skip
    return gl.convert_layout(in_order(pairs, FORM.rows, FORM, dtype), LEFT, assert_trivial=True)


@gluon.jit
def float_operand(words, stored, PLACE: gl.constexpr, FORM: gl.constexpr, dtype: gl.constexpr,
                  LAYOUT: gl.constexpr):  # fmt: skip
    """Return the codes of fp4_e2m1 at one place of words [shares, rows, plane], times their scales.

    These are bytes, ``stored`` [shares, rows, pieces].
    """
    LEFT: gl.constexpr = gl.DotOperandLayout(0, LAYOUT, FORM.plane // 8)
    PTX: gl.constexpr = instructions(PLACE, FORM, dtype)
    PIECES: gl.constexpr = pieces_layout(FORM)
    PAIRS: gl.constexpr = FORM.plane // 2
    split = gl.reshape(words, [FORM.shares, FORM.rows, FORM.pieces, PAIRS // FORM.pieces])
    split = gl.convert_layout(split, PIECES, assert_trivial=True)
    factor = gl.expand_dims(scale_at(stored, PLACE, FORM), 3)
    pairs = gl.inline_asm_elementwise(PTX, "=r,r,r", [split, factor], dtype=gl.int32, is_pure=True,
                                      pack=1)  # fmt: skip
    pairs = gl.reshape(pairs, [FORM.shares, FORM.rows, PAIRS])
    return gl.convert_layout(in_order(pairs, FORM.rows, FORM, dtype), LEFT, assert_trivial=True)


@gluon.jit
def right_operand(pairs, FORM: gl.constexpr, dtype: gl.constexpr, LAYOUT: gl.constexpr):
    """Return x [shares, plane, tokens] of pairs [shares, x_rows, plane / 2], maybe one row's."""
    RIGHT: gl.constexpr = gl.DotOperandLayout(1, LAYOUT, FORM.plane // 8)
    values = gl.permute(in_order(pairs, FORM.x_rows, FORM, dtype), (0, 2, 1))
    values = gl.convert_layout(values, RIGHT, assert_trivial=True)
    if FORM.x_rows < FORM.tokens:
        whole = gl.full([FORM.shares, FORM.plane, FORM.tokens], 0.0, dtype, RIGHT)
        whole, values = gl.broadcast(whole, values)
    return values
