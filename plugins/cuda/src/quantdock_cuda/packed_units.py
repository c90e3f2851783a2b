"""Which tiles of packed_kernel a program computes, and which steps of their sums.

Programs take turns with whole tiles. Of those that are left, fewer than there are programs, sums
are shared: each program has as many steps as the others, of one tile or of the end of one and the
beginning of the next.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

GROUP = gl.constexpr(64)  # rows of the weight that four warps work on, and of a block of words
BAND = gl.constexpr(4)  # tiles of x that share words in cache


@gluon.jit
def share_of(sizes, FORM: gl.constexpr):
    """Return how many tiles a program has, how many of them whole, and its share of the others.

    The share are steps from ``begin`` to ``end`` of all steps of the tiles that are left.
    """
    _, _, _, steps, whole, sharers, shared = sizes
    program = gl.program_id(0)
    turns = gl.cdiv(whole - program, gl.num_programs(0))
    begin, end, count = program * 0, program * 0, turns
    if FORM.split:
        begin, end = program * shared // sharers, (program + 1) * shared // sharers
        tiles = (end - 1) // steps - begin // steps + 1
        count = turns + gl.where(program < sharers, tiles, 0)
    return count, turns, begin, end


@gluon.jit
def unit_of(turn, share, sizes, FORM: gl.constexpr):
    """Return a turn's tile, first row of x, first row of the weight, and its steps.

    The last tile of x ends where x does: its first rows are those of another tile too, which stores
    them.
    """
    m, first_row, n, steps, whole, _, _ = sizes
    _, turns, begin, end = share
    tile, first, last = gl.program_id(0) + turn * gl.num_programs(0), turn * 0, steps
    if FORM.split:
        own = begin // steps + turn - turns
        is_shared = turn >= turns
        tile = gl.where(is_shared, whole + own, tile)
        first = gl.where(is_shared, gl.maximum(begin - own * steps, 0), 0)
        last = gl.where(is_shared, gl.minimum(end - own * steps, steps), steps)
    origin = first_row // GROUP * GROUP
    tall, wide = gl.cdiv(m, FORM.m), gl.cdiv(n - origin, FORM.groups * GROUP)
    top, left = 0, tile
    if tall > 1:
        band, within = tile // (BAND * wide) * BAND, tile % (BAND * wide)
        height = gl.minimum(tall - band, BAND)
        # The copy engine takes up to twice as long for tiles that reach beyond x.
        top, left = gl.minimum((band + within % height) * FORM.m, m - FORM.m), within // height
    return tile, top, origin + left * (FORM.groups * GROUP), first, last


@gluon.jit
def sharers_of(tile, sizes):
    """Return the first program that shares a tile's sum, and how many do."""
    _, _, _, steps, whole, sharers, shared = sizes
    start = (tile - whole) * steps
    lowest = ((start + 1) * sharers - 1) // shared
    return lowest, ((start + steps) * sharers - 1) // shared - lowest + 1


@gluon.jit
def room_of(program, begins_tile, FORM: gl.constexpr, PART: gl.constexpr):
    """Return where a program's part of a sum lies: it has two, of which one begins a tile."""
    number = (program * 2 + begins_tile.to(gl.int32)) * FORM.groups + PART
    return number.to(gl.int64) * (GROUP * FORM.m)
