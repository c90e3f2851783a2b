"""Tiles for products with packed codes whose rows do not depend on the rows beside them.

Each sum over K has one order: the same steps, in the same parts, with weights scaled alike. In some
tiles programs share a sum, in others one program adds up the same parts. How many rows a tile has
changes no bit (tests/device/test_cuda_w4a16.py), so each M takes the tile that is fastest.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from quantdock_cuda.device import Device
from quantdock_cuda.packed_matmul import RolesTile
from quantdock_cuda.packed_tiling import as_it_fits, estimate, fitted, tiles_with_roles
from quantdock_triton.packed_layout import Packing
from quantdock_triton.packed_matmul import PackedTile

_SCRATCH_BYTES = 4096  # of shared memory, beside the stages
_TILE = PackedTile(m=16, n=64, words=64, warps=4, stages=4)  # for any number of rows
# Up to 16 rows of x, on GPUs with asynchronous tensor cores.
_FEW = RolesTile(m=16, stages=5, taken=2, x_stages=5, resident=3, folded=True)
_LEAST = 64  # rows of x of other tiles
# How much longer those take, by rows of x and groups of warps, whose programs keep two sums where
# they add up parts.
_TWO_SUMS = {(64, 2): 1.1, (128, 3): 1.17, (256, 2): 1.3}
_PARTS = (4, 2, 1)  # of a sum, whatever M is: as many as keep all programs of few rows at work


@lru_cache(maxsize=1 << 12)
def alone_tile(
    packing: Packing, device: Device, n: int, k: int, m: int
) -> PackedTile | RolesTile | None:
    """Return a tile that adds up each row of a layer [N, K] in one order, whatever M is."""
    if "wgmma" not in device.features:
        tile = replace(_TILE, words=min(_TILE.words, packing.plane))
        return fitted(tile, packing, device.shared_bytes - _SCRATCH_BYTES)
    high, steps = packing.blocks(n, k)
    programs = device.num_sms * _FEW.resident
    parts = next((p for p in _PARTS if p <= steps and p * high <= programs), 1)
    if m <= _FEW.m:
        chosen = replace(_FEW, parts=parts, joined=parts)
    else:
        tiles = tiles_with_roles(packing, max(m, _LEAST))
        choices = [
            replace(tile, folded=True, parts=p, joined=parts)
            for tile in tiles
            for p in sorted({1, parts})
        ]
        chosen = min(choices, key=lambda tile: _estimate(tile, packing, device, n, k, m))
    return as_it_fits(chosen, packing, device)


def _estimate(tile: RolesTile, packing: Packing, device: Device, n: int, k: int, m: int) -> float:
    """Return microseconds as of tiles whose sums may have any order, and what parts cost."""
    longer = _TWO_SUMS.get((tile.m, tile.groups), 1.0) if tile.joined > 1 else 1.0
    return longer * estimate(tile, packing, device, n, k, m)
