"""Sorting tokens by expert on the device: nobody waits, and every sum has one order.

A pair is one token and one of the experts it was sent to; pairs are numbered token by token.
"""

from __future__ import annotations

import triton
import triton.language as tl

from quantdock_triton.quantize_kernel import wait_for_kernel_before

AT_ONCE = tl.constexpr(16)  # chunks, and tiles, that a program looks at together
RANKED = tl.constexpr(128)  # pairs that are compared with each other


@triton.jit
def experts_of(ids, start, num_pairs, num_experts, CHUNK: tl.constexpr):
    """Return the experts of CHUNK pairs from ``start``; num_experts: of another rank, or none."""
    at = start + tl.arange(0, CHUNK)
    sent = tl.load(ids + at, mask=at < num_pairs, other=-1)
    return tl.where((sent >= 0) & (sent < num_experts), sent, num_experts).to(tl.int32)


@triton.jit(do_not_specialize=["num_pairs", "num_experts", "num_tiles"])
def route(ids, order, plan, num_pairs, num_experts, num_tiles, TILE_M: tl.constexpr,
          BINS: tl.constexpr, CHUNK: tl.constexpr, EARLY: tl.constexpr):  # fmt: skip
    """List the pairs of one expert in ``order``, and its tiles in ``plan``; see ``Routing``.

    One program more than there are experts marks what of the plan is left over. EARLY: start while
    the kernel before ends.
    """
    if EARLY:
        wait_for_kernel_before()
    expert = tl.program_id(0)
    counts = tl.zeros([BINS], dtype=tl.int32)
    for start in range(0, num_pairs, CHUNK):
        sent = experts_of(ids, start, num_pairs, num_experts, CHUNK)
        counts += tl.histogram(sent, BINS, mask=sent < num_experts)
    bins = tl.arange(0, BINS)
    own = tl.sum(tl.where(bins == expert, counts, 0))
    first = tl.sum(tl.where(bins < expert, counts, 0))
    tile = tl.sum(tl.where(bins < expert, (counts + TILE_M - 1) // TILE_M, 0))
    at = tl.arange(0, CHUNK)
    if expert == num_experts:
        tl.store(plan + 3 * num_tiles, first)
        tl.store(plan + 3 * num_tiles + 1, tile)
        for start in range(tile, num_tiles, CHUNK):
            tl.store(plan + start + at, -1, mask=start + at < num_tiles)
        return
    for start in range(0, tl.cdiv(own, TILE_M), CHUNK):
        number = start + at
        inside = number * TILE_M < own
        tl.store(plan + tile + number, expert, mask=inside)
        tl.store(plan + num_tiles + tile + number, first + number * TILE_M, mask=inside)
        tl.store(plan + 2 * num_tiles + tile + number, first + own, mask=inside)
    if own > 0:
        for start in range(0, num_pairs, CHUNK):
            is_own = experts_of(ids, start, num_pairs, num_experts, CHUNK) == expert
            rank = tl.cumsum(is_own.to(tl.int32), axis=0)
            tl.store(order + first + rank - 1, start + at, mask=is_own)
            first += tl.sum(is_own.to(tl.int32))


@triton.jit(do_not_specialize=["num_pairs", "num_experts"])
def count_pairs(ids, counts, num_pairs, num_experts, BINS: tl.constexpr, CHUNK: tl.constexpr,
                EARLY: tl.constexpr):  # fmt: skip
    """Store how many of CHUNK pairs each expert has, [programs, BINS]."""
    if EARLY:
        wait_for_kernel_before()
    sent = experts_of(ids, tl.program_id(0) * CHUNK, num_pairs, num_experts, CHUNK)
    found = tl.histogram(sent, BINS, mask=sent < num_experts)
    tl.store(counts + tl.program_id(0) * BINS + tl.arange(0, BINS), found)


@triton.jit
def sums_of_counts(counts, BINS: tl.constexpr):
    """Return how many pairs each expert has, and how many of them in chunks before this one."""
    block, num_blocks = tl.program_id(0), tl.num_programs(0)
    total = tl.zeros([BINS], dtype=tl.int32)
    before = tl.zeros([BINS], dtype=tl.int32)
    for start in range(0, num_blocks, AT_ONCE):
        rows = start + tl.arange(0, AT_ONCE)
        at = counts + rows[:, None] * BINS + tl.arange(0, BINS)[None, :]
        found = tl.load(at, mask=(rows < num_blocks)[:, None], other=0)
        total += tl.sum(found, axis=0)
        before += tl.sum(tl.where((rows < block)[:, None], found, 0), axis=0)
    return total, before


@triton.jit
def plan_tiles(plan, total, first, num_tiles, TILE_M: tl.constexpr, BINS: tl.constexpr):
    """Store every so many tiles of the plan, of experts with ``total`` pairs from ``first`` on."""
    tiles = (total + TILE_M - 1) // TILE_M
    last_tile = tl.cumsum(tiles, axis=0)
    for start in range(tl.program_id(0) * AT_ONCE, num_tiles, tl.num_programs(0) * AT_ONCE):
        number = start + tl.arange(0, AT_ONCE)
        expert = tl.sum((last_tile[None, :] <= number[:, None]).to(tl.int32), axis=1)
        inside, known = number < num_tiles, tl.minimum(expert, BINS - 1)
        place = number - tl.gather(last_tile - tiles, known, axis=0)
        begin, end = tl.gather(first, known, axis=0), tl.gather(first + total, known, axis=0)
        tl.store(plan + number, tl.where(expert < BINS, expert, -1), mask=inside)
        tl.store(plan + num_tiles + number, begin + place * TILE_M, mask=inside)
        tl.store(plan + 2 * num_tiles + number, end, mask=inside)


@triton.jit(do_not_specialize=["num_pairs", "num_experts", "num_tiles"])
def place_pairs(ids, counts, order, plan, num_pairs, num_experts, num_tiles, TILE_M: tl.constexpr,
                BINS: tl.constexpr, CHUNK: tl.constexpr, EARLY: tl.constexpr):  # fmt: skip
    """List CHUNK pairs in ``order`` by what ``count_pairs`` counted, and some tiles in ``plan``."""
    if EARLY:
        wait_for_kernel_before()
    total, before = sums_of_counts(counts, BINS)
    first = tl.cumsum(total, axis=0) - total
    plan_tiles(plan, total, first, num_tiles, TILE_M, BINS)
    if tl.program_id(0) == 0:
        tl.store(plan + 3 * num_tiles, tl.sum(total))
        tl.store(plan + 3 * num_tiles + 1, tl.sum((total + TILE_M - 1) // TILE_M))
    base, at = first + before, tl.arange(0, RANKED)
    for part in range(CHUNK // RANKED):
        start = tl.program_id(0) * CHUNK + part * RANKED
        sent = experts_of(ids, start, num_pairs, num_experts, RANKED)
        alike = (sent[:, None] == sent[None, :]) & (at[None, :] < at[:, None])
        rank = tl.sum(alike.to(tl.int32), axis=1)
        place = tl.gather(base, tl.minimum(sent, BINS - 1), axis=0) + rank
        tl.store(order + place, start + at, mask=sent < num_experts)
        base += tl.histogram(sent, BINS, mask=sent < num_experts)


@triton.jit
def tile_of(plan, order, tile, num_experts, num_tiles, top_k, DIRECT: tl.constexpr,
            GATHERS: tl.constexpr, SCATTERS: tl.constexpr, BLOCK_M: tl.constexpr):  # fmt: skip
    """Return the expert of a tile, -1 where it has none; its rows of x and of the result; and
    which of these are there, in an array of booleans. All numbers are int64.

    Rows that are not there read row 0 of x.

    GATHERS: x has a row for each token; else one for each pair, sorted by expert. SCATTERS: the
    result has the pairs as they are numbered; else it is sorted too. DIRECT: nothing is sorted: the
    plan is the ids of experts themselves, and each pair a tile.
    """
    row = tl.arange(0, BLOCK_M)
    expert = tl.load(plan + tile).to(tl.int64)
    if DIRECT:
        expert = tl.where(expert < num_experts, expert, -1)
        place, has_row = tile + row, row < tl.where(expert >= 0, 1, 0)
        pair = place
    else:
        first, end = tl.load(plan + num_tiles + tile), tl.load(plan + 2 * num_tiles + tile)
        # Where a tile has no expert, what the plan says of its rows was never written.
        place = tl.where(expert >= 0, first, 0) + row
        has_row = place < tl.where(expert >= 0, end, 0)
        pair = place
        if GATHERS or SCATTERS:
            pair = tl.load(order + place, mask=has_row, other=0)
    rows = tl.where(has_row, pair // top_k if GATHERS else place, 0)
    places = pair if SCATTERS else place
    return expert, rows.to(tl.int64), places.to(tl.int64), has_row


@triton.jit(do_not_specialize=["num_experts"])
def sum_of_pairs(parts, weights, ids, out, num_experts, n, TOP_K: tl.constexpr,
                 WIDTH: tl.constexpr, EARLY: tl.constexpr):  # fmt: skip
    """Write the sum of a token's pairs, each times its routing weight, rounded once."""
    if EARLY:
        wait_for_kernel_before()
    token = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    total = tl.zeros([WIDTH], dtype=tl.float32)
    for number in tl.static_range(TOP_K):
        pair = token * TOP_K + number
        sent = tl.load(ids + pair)
        inside = columns < tl.where((sent >= 0) & (sent < num_experts), n, 0)
        part = tl.load(parts + pair * n + columns, mask=inside, other=0.0).to(tl.float32)
        total += tl.load(weights + pair).to(tl.float32) * part
    tl.store(out + token * n + columns, total.to(out.dtype.element_ty), mask=columns < n)
