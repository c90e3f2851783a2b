"""The ways that are worth trying for a product: what is fixed for a kernel, and what may vary."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

from quantdock_cuda import block_matmul
from quantdock_cuda.device import Device
from quantdock_cuda.tables import shipped
from quantdock_cuda.tiling import MOST_ROWS, SMALL, names_of, needs, rule
from quantdock_triton.tile import Form, Tile

SCRATCH_BYTES = 2 << 10  # of shared memory, beside the stages
USUAL_STAGES = 6
_LARGE = ((128, 128), (64, 128), (128, 256), (64, 256), (256, 128), (128, 64))
# By rows of x, the most that a tile of plain Triton's kernel may have.
_HEIGHTS = {1: (16,), 16: (16,), 32: (16, 32), 64: (16, 32, 64), 128: (32, 64, 128)}
# By rows of x, tiles of the kernel with roles: rows, columns, whether the weight is left.
_WITH_ROLES = {
    1: ((8, 64, True), (8, 128, True)),
    16: ((16, 64, True), (16, 128, True)),
    32: ((32, 64, True), (32, 128, True), (64, 64, False)),
    64: ((64, 32, False), (64, 64, False), (64, 128, False)),
    128: ((64, 32, False), (64, 64, False), (64, 128, False), (128, 64, False), (128, 128, False)),
}
_LARGE_WITH_ROLES = ((64, 64, False), (64, 128, False), (128, 64, False), (128, 128, False))
# Of the kernel with roles: columns that are copied at once, and how often ahead.
_DEPTHS = ((128, 4), (128, 6), (128, 8), (256, 2), (256, 3), (256, 4), (256, 6), (256, 8))
_FEW_COLUMNS = 512  # with which groups that take turns have nothing copied ahead


def tiles(form: Form, device: Device, m: int, n: int, k: int) -> list[Tile]:
    """Return the tiles to try for ``m`` rows, a number that ``tiling.bucket`` makes."""
    bases = [*with_roles(form, device, m, k), *plain(form, device, m)]
    found = (tile for base in bases for tile in divisions(base, m, n, k, device.num_sms))
    return list(dict.fromkeys(found))


def likely(form: Form, device: Device, m: int, n: int, k: int) -> list[Tile]:
    """Return a tenth of ``tiles`` or so: those that were fast at any shape of the shipped table.

    Without a table, of tiles that differ in their stages alone, the one with a usual number.
    """
    shapes = shipped(device.arch).get(names_of(form)[-1], {})
    rows = min(m, MOST_ROWS)
    known = [way for by_rows in shapes.values() for way in by_rows.get(rows, ())]
    bases = [replace(way, parts=1) for way in known if isinstance(way, Tile)]
    if not bases:
        alike: dict[Tile, Tile] = {}
        for tile in (*with_roles(form, device, m, k), *plain(form, device, m)):
            if tile.stages <= USUAL_STAGES:
                alike[replace(tile, stages=1)] = tile
        bases = list(alike.values())
    bases = [tile for tile in (*bases, replace(rule(form, device, n, k, m), parts=1))
             if not tile.roles or block_matmul.takes(form, tile, k)]  # fmt: skip
    found = (tile for base in bases for tile in divisions(base, m, n, k, device.num_sms))
    return list(dict.fromkeys(found))


def plain(form: Form, device: Device, m: int) -> Iterator[Tile]:
    """Yield tiles of plain Triton's kernel for ``m`` rows, each with one part."""
    most_bytes, engines = device.shared_bytes - SCRATCH_BYTES, _copy_engines(form, device)
    if m > SMALL:
        depth = 64 if form.weight_only else 128
        for (height, width), warps, stages in product(_LARGE, (4, 8), (3, 4)):
            values = height * width // (32 * warps)
            if 32 <= values <= (64 if form.is_grouped else 128):
                tile = Tile(m=height, n=width, k=depth, warps=warps, stages=stages, tma=engines[-1])
                yield tile.fitted(form, most_bytes)
        return
    depths = (128,) if form.is_grouped or form.weight_only else (128, 256)
    for height, width, depth, warps, stages, tma in product(
        _HEIGHTS[m], (64, 128), depths, (4, 8), (3, 4, 6, 8), engines
    ):
        tile = Tile(m=height, n=width, k=depth, warps=warps, stages=stages, swap=True, tma=tma)
        fits = tile.shared_bytes(form) <= most_bytes
        if fits and height * width // (32 * warps) <= 64 and (warps == 4 or width == 128):
            yield tile


def with_roles(form: Form, device: Device, m: int, k: int) -> Iterator[Tile]:
    """Yield tiles of the kernel whose warps have roles, each with one part, where it runs."""
    if not needs(Tile(m=64, n=64, k=128, roles=True)) <= device.features:
        return
    sizes = _WITH_ROLES.get(m, _LARGE_WITH_ROLES)
    for (height, width, swap), (depth, stages), resident, slices, tma in product(
        sizes, _DEPTHS, (1, 2, 3), (1, 2), (False, True)
    ):
        tile = Tile(m=height, n=width, k=depth, stages=stages, resident=resident, roles=True)
        tile = replace(tile, slices=slices, swap=swap, tma=tma)
        if (tma and m <= SMALL) or (slices > 1 and depth * stages <= _FEW_COLUMNS):
            continue
        num_bytes = tile.shared_bytes(form) + block_matmul.scratch_bytes(tile)
        fits = resident * num_bytes <= device.shared_bytes - SCRATCH_BYTES
        if fits and block_matmul.has_room(tile) and block_matmul.takes(form, tile, k):
            yield tile


def divisions(tile: Tile, m: int, n: int, k: int, num_sms: int) -> Iterator[Tile]:
    """Yield ``tile`` with the numbers of parts that could fill the device."""
    num_tiles, room = -(-m // tile.m) * -(-n // tile.n), tile.resident * num_sms
    for parts in (1, 2, 3, 4, 6, 8):
        # Programs with roles take one part each.
        fits = num_tiles * parts <= room if tile.roles else num_tiles * (parts - 1) < 2.5 * num_sms
        # Two programs of a multiprocessor while others have none: those that start early do that.
        is_crowded = tile.resident > 1 and num_tiles * parts <= num_sms
        if is_crowded:
            continue
        shares = (tile.swap or tile.roles) and fits and k // tile.k >= 2 * parts
        if parts == 1 or shares:
            yield replace(tile, parts=parts)


def _copy_engines(form: Form, device: Device) -> tuple[bool, ...]:
    """Return whether operands may come through the bulk copy engine, the usual answer first."""
    return (False, True) if "tma" in device.features and not form.weight_only else (False,)
