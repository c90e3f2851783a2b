"""Which way a product is computed: a measured table, the nearest entry of it, or a rule.

Another shape than those of a table (``tables.py``), or a GPU of another size, takes the ways of the
nearest one, with as many parts of each sum as keep about as many programs at work for each
multiprocessor, and none that would leave the GPU idle.
The rule stands at the end, and alone where nothing was measured: it needs sizes and features alone,
and its tile runs everywhere.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import islice
from math import ceil

from quantdock_cuda import tables
from quantdock_cuda.device import Device
from quantdock_cuda.libraries import LIBRARY, is_installed
from quantdock_cuda.tables import Near, Shape, Way
from quantdock_cuda.unpacked import UNPACK, unpacks
from quantdock_triton.tile import Form, Tile

BLOCK = Form(x_cols=128, weight_cols=128, weight_rows=128)
SMALL = 128  # rows up to which the weight is the left operand
MOST_ROWS = 8192  # that ways are told apart for
_NAMES = {Form(): "row", BLOCK: "block"}
_FOR_TMA = frozenset({"tma"})
_FOR_ROLES = frozenset({"tma", "wgmma"})
_LEAST_STEPS = 4  # of a part of a sum
_MOST_WASTE = 1.2  # of time, with few rows
_IDLE_COSTS = 0.3
_SCRATCH_BYTES = 4096  # of shared memory, beside the stages
# Rows up to which a tile beats one scale for all in cuBLASLt, on Hopper and elsewhere.
_BELOW_TENSOR = {True: SMALL, False: 16}


def bucket(m: int) -> int:
    """Return the number of rows that stands for ``m``: the next power of two, or 16 at least."""
    return max(16, 1 << (m - 1).bit_length()) if m > 1 else 1


def names_of(form: Form, one_scale: bool = False) -> tuple[str, ...]:
    """Return the names of a form in tables: its own, and one whose ways serve it as well.

    Args:
        one_scale: x and the weight have one scale each, for all.
    """
    if form in _NAMES:
        return ("tensor", _NAMES[form]) if one_scale else (_NAMES[form],)
    tile = f"[{form.weight_rows}x{form.weight_cols or '*'}]"
    x = "" if form.weight_only else f" x [1x{form.x_cols or '*'}]"
    return (f"{form.element}{tile}{x}",)


@lru_cache(maxsize=1 << 14)
def ways(
    form: Form, device: Device, n: int, k: int, m: int, one_scale: bool = False
) -> tuple[Way, ...]:
    """Return the ways to compute ``m`` rows of a layer [N, K], best first; the last always can.

    Libraries are among them where they are installed.
    """
    entries = tables.nearest(names_of(form, one_scale), device, (n, k), min(bucket(m), MOST_ROWS))
    found: list[Way] = []
    if not entries or not entries[0].is_users:
        if one_scale and _is_for_cublaslt(form, device, m):
            found.append(LIBRARY)
        found.append(UNPACK)
    last = rule(form, device, n, k, m)
    if entries and entries[0].shape == (n, k) and entries[0].num_sms == device.num_sms:
        found += entries[0].ways
    elif entries and m <= SMALL:
        found += _moved_few(entries, (n, k), m, device)
    elif entries:
        found += _moved_many(entries[0], n, m, last, device)
    elif m > SMALL and (form.weight_only or "wgmma" in device.features):
        found.append(LIBRARY)
    # A table may list what another shape, or another machine, has.
    unpacking = unpacks(form, device, n, k, m)
    found = [
        way
        for way in found
        if isinstance(way, Tile) or (unpacking if way == UNPACK else is_installed(way))
    ]
    return tuple(dict.fromkeys((*found, last)))


def rule(form: Form, device: Device, n: int, k: int, m: int) -> Tile:
    """Return a tile that runs on every device, from sizes alone."""
    if m > SMALL:
        large = -(-m // 128) * -(-n // 128) >= device.num_sms
        tile = Tile(m=128 if large else 64, n=128 if large else 64, k=128, warps=8 if large else 4)
        tile = replace(tile, k=64 if form.weight_only else 128)
    else:
        height = max(16, min(64, 1 << (m - 1).bit_length()))
        tile = Tile(m=height, n=64, k=128, stages=6, swap=True)
        num_tiles = -(-m // height) * -(-n // 64)
        steps = -(-k // form.block_k(128))
        parts = min(round(1.5 * device.num_sms / num_tiles), steps // _LEAST_STEPS, 8)
        tile = replace(tile, parts=max(parts, 1))
    return tile.fitted(form, device.shared_bytes - _SCRATCH_BYTES)


def alone(form: Form, device: Device) -> Tile:
    """Return a tile that runs on every device and adds up each row in one order, whatever M is."""
    tile = Tile(m=16, n=64, k=128, stages=6, swap=True)
    return tile.fitted(form, device.shared_bytes - _SCRATCH_BYTES)


def needs(tile: Tile) -> frozenset[str]:
    """Return the features of a GPU without which a tile cannot run."""
    if tile.roles:
        return _FOR_ROLES
    return _FOR_TMA if tile.tma else frozenset()


def _is_for_cublaslt(form: Form, device: Device, m: int) -> bool:
    """Return whether one scale for each operand is faster in cuBLASLt than in our tiles."""
    return form.element == "fp8_e4m3" and m > _BELOW_TENSOR["wgmma" in device.features]


def _moved_few(entries: Sequence[Near], shape: Shape, m: int, device: Device) -> Iterator[Way]:
    """Yield the nearest entry's ways for few rows, as the programs of another shape need.

    Where its best one leaves much of the GPU idle in its last round of programs, a tile comes first
    that does not: that of the nearest entry which has one.
    """
    moved = [
        way if isinstance(way, str) else _moved(way, entry, shape, m, device.num_sms)
        for entry in entries
        for way in entry.ways
    ]
    near, first = entries[0], moved[0]
    if isinstance(near.ways[0], Tile) and isinstance(first, Tile):
        usual = max(_waste(near.ways[0], near.shape[0], m, near.num_sms), _MOST_WASTE)
        n, num_sms = shape[0], device.num_sms
        if _waste(first, n, m, num_sms) > usual:
            tiles = (way for way in moved if isinstance(way, Tile))
            yield from islice((t for t in tiles if _waste(t, n, m, num_sms) <= usual), 1)
    yield from moved[: len(near.ways)]


def _moved_many(near: Near, n: int, m: int, rule: Tile, device: Device) -> Iterator[Way]:
    """Yield the nearest entry's ways for many rows, but for tiles that leave the GPU idle."""
    for way in near.ways:
        if isinstance(way, str) or _fills(way, rule, n, m, device):
            yield way


def _moved(tile: Tile, near: Near, shape: Shape, m: int, num_sms: int) -> Tile:
    """Return the tile of an entry for another shape or GPU: sums are divided as programs need."""
    if tile.parts == 1:
        return tile
    tall = -(-near.shape[0] // tile.n), -(-shape[0] // tile.n)
    as_many = tile.parts * tall[0] / tall[1] * num_sms / near.num_sms
    most = min(round(as_many), shape[1] // (_LEAST_STEPS * tile.k))
    divided = [replace(tile, parts=parts) for parts in range(max(most, 1), 0, -1)]
    usual = max(_waste(tile, near.shape[0], m, near.num_sms), _MOST_WASTE)
    fitting = (t for t in divided if _waste(t, shape[0], m, num_sms) <= usual)
    return next(fitting, divided[0])


def _waste(tile: Tile, n: int, m: int, num_sms: int) -> float:
    """Return how much longer few rows take than with programs enough for whole rounds.

    A multiprocessor with one program more than others takes that much longer. One without a program
    costs less, since the others get its share of the memory's bandwidth.
    """
    rounds = -(-m // tile.m) * -(-n // tile.n) * tile.parts / num_sms
    return ceil(rounds) / rounds if rounds > 1 else 1 + _IDLE_COSTS * (1 / rounds - 1)


def _fills(tile: Tile, other: Tile, n: int, m: int, device: Device) -> bool:
    """Return whether a tile makes as many programs as another, or enough for half of the GPU.

    A large one leaves most of a GPU idle where the result is small.
    """
    mine, others = (-(-m // t.m) * -(-n // t.n) for t in (tile, other))
    return mine >= min(others, device.num_sms // 2)
