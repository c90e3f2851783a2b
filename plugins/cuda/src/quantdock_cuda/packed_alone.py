"""Tiles for products with packed codes whose rows do not depend on the rows beside them.

Each sum over K has one order: the same steps, in the same parts, with weights scaled alike. Tiles
of few rows have programs that share a sum, those of many rows have one program that adds up the
same parts. How many rows a tile has changes no bit (tests/device/test_cuda_w4a16.py).
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from quantdock_cuda.device import Device
from quantdock_cuda.packed_matmul import RolesTile
from quantdock_cuda.packed_tiling import as_it_fits, fitted
from quantdock_triton.packed_layout import Packing
from quantdock_triton.packed_matmul import PackedTile

_SCRATCH_BYTES = 4096  # of shared memory, beside the stages
_TILE = PackedTile(m=16, n=64, words=64, warps=4, stages=4)  # for any number of rows
# By rows of x, on GPUs with asynchronous tensor cores.
_FEW = {
    16: RolesTile(m=16, stages=5, taken=2, x_stages=5, resident=3, folded=True),
    64: RolesTile(m=64, stages=3, taken=2, x_stages=5, resident=2, folded=True),
}
_MANY = RolesTile(m=128, groups=2, stages=4, taken=2, x_stages=4, folded=True)
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
    programs = device.num_sms * _FEW[16].resident
    parts = next((p for p in _PARTS if p <= steps and p * high <= programs), 1)
    few = next((tile for rows, tile in _FEW.items() if m <= rows), None)
    chosen = replace(few, parts=parts) if few else _MANY
    return as_it_fits(replace(chosen, joined=parts), packing, device)
