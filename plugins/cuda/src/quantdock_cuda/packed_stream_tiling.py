"""Which tile streams the words of a weight, for so few rows of x that reading them is all."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from quantdock_cuda.device import Device
from quantdock_cuda.packed_stream import StreamTile
from quantdock_triton.packed_layout import Packing

# By rows of x: the tile, without what follows from the device and the layer. One row of x fits into
# shared memory; of more, each warp reads what it needs, by the cache, and so does one where there
# are many programs.
_TILES = {
    1: StreamTile(rows=16, tokens=8, x_rows=1, keeps_x=True, warps=4, registers=72),
    8: StreamTile(rows=32, tokens=8, x_rows=8, warps=4, registers=128),
}
# Of up to 8 rows and floats, which leave a warp busy for longer, where a multiprocessor holds all.
_SHORT = StreamTile(rows=16, tokens=8, x_rows=8, warps=4, registers=72)
_HELD = 7  # programs of a multiprocessor with 72 registers
_FEWER = 64  # registers, where there are more programs
_MOST_KEPT_BY = 4  # programs of a multiprocessor that keep x
_MOST_WARPS = 16  # of all programs, for each multiprocessor, with which programs are twice as wide
MOST_KEPT = 1 << 15  # bytes of x that one program keeps; longer sums are divided


@lru_cache(maxsize=1 << 12)
def stream_tile(packing: Packing, device: Device, n: int, k: int, m: int) -> StreamTile | None:
    """Return the tile for ``m`` rows of a layer [N, K]; None: another kernel is as fast.

    Measured where tensor cores are asynchronous; columns come in whole planes.
    """
    tile = next((tile for rows, tile in _TILES.items() if m <= rows), None)
    if tile is None or "wgmma" not in device.features or k % packing.plane:
        return None
    tile = replace(tile, early="dependent_launch" in device.features)
    steps, programs = packing.blocks(n, k)[1], -(-n // tile.rows) / device.num_sms
    is_wide = programs * tile.warps * 2 <= _MOST_WARPS
    if is_wide:
        tile = replace(tile, warps=tile.warps * 2)
    if tile.x_rows > 1:
        is_short = packing.is_float and not is_wide and 2 * programs <= _HELD
        return replace(_SHORT, early=tile.early) if is_short else tile
    if is_wide or programs > _HELD:
        tile = replace(tile, registers=_FEWER)
    # By the cache it was measured with floats, and with groups of 128 of 4 bits.
    is_known = packing.is_float or (packing.bits, packing.group) == (4, 128)
    if is_known and programs > _MOST_KEPT_BY:
        return replace(tile, keeps_x=False)
    # A sum of two turns is asked for whole while the kernel before ends.
    ahead = int(tile.early and is_wide and tile.warps < steps <= 2 * tile.warps)
    return replace(tile, ahead=ahead, parts=min(-(-2 * k // MOST_KEPT), steps))
