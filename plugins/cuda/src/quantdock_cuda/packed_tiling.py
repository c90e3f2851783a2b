"""Which way a product with packed integer codes is computed, from sizes alone."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from quantdock_cuda.device import Device
from quantdock_cuda.packed_matmul import RolesTile, sharers_of
from quantdock_triton.packed_layout import ROWS, WORD_BITS, Packing
from quantdock_triton.packed_matmul import PackedTile

# Rows of x from which the weight is made 16-bit first, for torch's product, on GPUs without
# asynchronous tensor cores.
MOST_FUSED = 256
# By rows of x: the tile, without what follows from the device and the layer.
_TILES = {
    16: PackedTile(m=16, n=64, words=64, warps=4, stages=4),
    32: PackedTile(m=32, n=64, words=64, warps=4, stages=3),
    64: PackedTile(m=64, n=128, words=32, warps=8, stages=3),
    256: PackedTile(m=128, n=128, words=32, warps=8, stages=3, folded=True),
}
_MOST_PARTS = 8
_WARPS = 8  # of all programs, for each multiprocessor: sums are divided until there are as many
_SCRATCH_BYTES = 4096  # of shared memory, beside the stages
_RESERVED = 1024  # bytes of it that the GPU keeps for each program
# With roles, for planes of 64 columns, and the microseconds that a round of tiles takes on an H200
# for 4096 columns of four bits: one tile for each multiprocessor, or all that it holds; and beyond
# that for a sum in two parts, and in four.
_ROLES = {
    RolesTile(m=16, stages=5, taken=2, x_stages=5, resident=3): (9.0, 14.0, 2.0, 2.5),
    RolesTile(m=32, stages=4, taken=2, x_stages=4, resident=3): (10.5, 16.0, 2.0, 3.0),
    RolesTile(m=64, stages=3, taken=2, x_stages=5, resident=2): (11.6, 19.3, 2.6, 4.2),
    RolesTile(m=64, groups=2, stages=2, taken=2, x_stages=4, resident=2, folded=True): (
        19.4, 33.3, 3.2, 4.4,
    ),
    RolesTile(m=128, stages=3, x_stages=5, resident=2, folded=True): (16.2, 28.6, 3.4, 6.2),
    RolesTile(m=128, groups=2, stages=4, taken=2, x_stages=4, folded=True): (26.8, 26.8, 4.5, 7.8),
    RolesTile(m=128, groups=3, stages=3, taken=2, x_stages=4, folded=True): (37.0, 34.8, 8.5, 16.0),
    RolesTile(m=256, groups=2, stages=3, x_stages=5, folded=True): (43.5, 43.5, 9.9, 17.0),
}  # fmt: skip
_TIMES = {(tile.m, tile.groups): times for tile, times in _ROLES.items()}
_PARTS = (1, 2, 4)  # of a sum of the last round, with roles
# How much longer than in four parts a sum takes whose parts end anywhere: two ends for a program.
_UNEVEN = 1.25
# By rows of x: tiles for layers with more tiles of 64 rows than multiprocessors, and for others
# two, which share each sum in four: one whose share of the words is in flight at once, where it
# fits, and one of 128 rows, which share the reading of x.
_FEW = {
    16: (
        RolesTile(m=16, stages=4, taken=4, x_stages=3, resident=4),
        RolesTile(m=16, stages=5, taken=2, x_stages=5, resident=3, parts=4),
        RolesTile(m=16, groups=2, stages=4, taken=4, x_stages=3, resident=2, parts=4),
    ),
    32: (
        RolesTile(m=32, groups=2, stages=4, taken=4, x_stages=2, resident=2),
        RolesTile(m=32, stages=5, taken=2, x_stages=4, resident=3, parts=4),
        RolesTile(m=32, groups=2, stages=4, taken=4, x_stages=2, resident=2, parts=4),
    ),
}
# Steps of a sum up to which programs of 16 rows that are four to a multiprocessor share it, where
# codes are floats.
_MOST_SHARED = 24
# Products and sums from which torch's product keeps a higher clock for longer than it takes to make
# the weight 16-bit.
MOST_WORK = 6e11
# Of torch's product, on an H200: products and sums, and weights made 16-bit, in a microsecond; its
# start in microseconds; and how much longer tiles take than by ``_ROLES``, at most.
_LIBRARY, _MARGIN = (3.6e8, 1.2e6, 8.0), 1.15
# Rows of x whose tiles are chosen alike; beyond these, as many as the last.
_BUCKETS = (16, 32, 64, 80, 128)
# How much longer the copy engine makes tiles take that are far taller than x, by groups of warps.
_BEYOND_X = (1.4, 1.1, 1.1)


def rows_of_bucket(m: int) -> int:
    """Return the number of rows of x that stands for ``m``."""
    few = next((rows for rows in _BUCKETS if m <= rows), None)
    return few or -(-m // _BUCKETS[-1]) * _BUCKETS[-1]


@lru_cache(maxsize=1 << 12)
def tile_for(
    packing: Packing, device: Device, n: int, k: int, m: int
) -> PackedTile | RolesTile | None:
    """Return the tile for ``m`` rows of a layer [N, K]; None: torch's product is faster."""
    if m in _FEW and "wgmma" in device.features:
        return few_tile(packing, device, n, k, m)
    if m > max(_FEW) and has_roles(packing, device, n, k, m):
        return roles_tile(packing, device, n, k, m)
    if m > MOST_FUSED:
        return None
    tile = next(tile for rows, tile in _TILES.items() if m <= rows)
    tile = replace(tile, words=min(tile.words, packing.plane))
    turns = packing.blocks(n, k)[1] * (packing.plane // tile.words)
    num_tiles = -(-m // tile.m) * -(-n // tile.n)
    parts = round(_WARPS * device.num_sms / (num_tiles * tile.warps))
    tile = replace(tile, parts=max(min(parts, turns // 2, _MOST_PARTS), 1))
    return fitted(tile, packing, device.shared_bytes - _SCRATCH_BYTES)


def few_tile(packing: Packing, device: Device, n: int, k: int, m: int) -> RolesTile:
    """Return the tile for 16 or 32 rows, whose time is that of reading words, and x over and over.

    Sums of many tiles are shared where that gives every program as much.
    """
    many, short, wide = (as_it_fits(tile, packing, device) for tile in _FEW[m])
    tiles, steps = packing.blocks(n, k)
    if tiles <= device.num_sms:
        if packing.is_float and m == min(_FEW) and steps <= _MOST_SHARED:
            return replace(many, parts=4 if 2 * tiles <= device.num_sms else 2)
        return short if steps <= short.parts * short.stages else wide
    is_half = 2 * -(-tiles // many.groups) > device.num_sms * many.resident
    return replace(many, parts=2 if is_half else 1)


def fitted(tile: PackedTile, packing: Packing, most_bytes: int) -> PackedTile:
    """Return ``tile`` with as many stages as the memory holds, and half the words if none fits."""
    x_words = tile.m * WORD_BITS // packing.bits
    stage_bytes = (tile.n + x_words) * tile.words * (WORD_BITS // 8)
    stages = min(tile.stages, most_bytes // stage_bytes)
    return replace(tile, stages=max(stages, 1))


@lru_cache(maxsize=1 << 12)
def roles_tile(packing: Packing, device: Device, n: int, k: int, m: int) -> RolesTile:
    """Return the tile and parts that take the shortest time by ``_ROLES``, as they fit a device."""
    return as_it_fits(_fastest(packing, device, n, k, m), packing, device)


def as_it_fits(tile: RolesTile, packing: Packing, device: Device) -> RolesTile:
    """Return a tile for planes of 64 columns as those of a packing need it, and memory allows."""
    wider, taken = 64 // packing.plane, min(tile.taken, WORD_BITS // packing.bits)
    x_stages = tile.x_stages * wider * tile.taken // taken
    tile = replace(tile, stages=tile.stages * wider, taken=taken, x_stages=x_stages)
    most = device.shared_bytes + _RESERVED  # what one program may take, and what is kept for it
    while (tile.shared_bytes(packing) + _RESERVED) * tile.resident > most:
        tile = replace(tile, stages=tile.stages - 1)
    return tile


def has_roles(packing: Packing, device: Device, n: int, k: int, m: int) -> bool:
    """Return whether tiles with roles beat a weight that is made 16-bit first, on a GPU."""
    if "wgmma" not in device.features or m * n * k >= MOST_WORK:
        return False
    rate, widening, start = _LIBRARY
    library = m * n * k / rate + n * k / widening + start
    tile = _fastest(packing, device, n, k, m)
    return _MARGIN * estimate(tile, packing, device, n, k, m) < library


def tiles_with_roles(packing: Packing, m: int) -> list[RolesTile]:
    """Return the tiles of ``_ROLES`` that suit more than 16 rows and a packing."""
    # Three groups of warps have multiplied codes of 4 bits only.
    most_groups = 3 if packing.bits == 4 else 2
    return [t for t in _ROLES if t.m >= min(m, 64) and t.groups <= most_groups]


def _fastest(packing: Packing, device: Device, n: int, k: int, m: int) -> RolesTile:
    """Return the tile of ``_ROLES`` that takes the shortest time, in the best number of parts."""
    steps = packing.blocks(n, k)[1]
    tiles = tiles_with_roles(packing, m)
    choices = [replace(tile, parts=p) for tile in tiles for p in _PARTS if p <= steps]
    return min(choices, key=lambda tile: estimate(tile, packing, device, n, k, m))


def estimate(tile: RolesTile, packing: Packing, device: Device, n: int, k: int, m: int) -> float:
    """Return microseconds by ``_ROLES``; the last round has fewer tiles at once, or as many."""
    one, all_of_them, *divided = _TIMES[tile.m, tile.groups]
    num_tiles = -(-m // tile.m) * -(-n // (tile.groups * ROWS))
    steps, most = packing.blocks(n, k)[1], device.num_sms * tile.resident
    rounds, rest = divmod(num_tiles, most)
    sharers = sharers_of(tile, num_tiles, steps, most)
    last = 0.0 if rest == 0 else one if (sharers or rest) <= device.num_sms else all_of_them
    ends = 0.0
    if sharers:
        last *= -(-rest * steps // sharers) / steps
        ends = divided[sharers > 2 * rest] if sharers % rest == 0 else _UNEVEN * divided[1]
    longer = _BEYOND_X[tile.groups - 1] if 64 < m < tile.m <= 128 else 1.0
    return longer * (rounds * all_of_them + last) * steps * packing.columns / 4096 + ends
