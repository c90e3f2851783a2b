"""Which way a product with packed integer codes is computed, from sizes alone."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from quantdock_cuda.device import Device
from quantdock_triton.packed_layout import WORD_BITS, Packing
from quantdock_triton.packed_matmul import PackedTile

# Rows of x from which the weight is made 16-bit first, for torch's product.
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


def rows_of_bucket(m: int) -> int:
    """Return the number of rows of x that stands for ``m``."""
    return next((rows for rows in (*_TILES, MOST_FUSED) if m <= rows), MOST_FUSED + 1)


@lru_cache(maxsize=1 << 12)
def tile_for(packing: Packing, device: Device, n: int, k: int, m: int) -> PackedTile | None:
    """Return the tile for ``m`` rows of a layer [N, K]; None: torch's product is faster."""
    if m > MOST_FUSED:
        return None
    tile = next(tile for rows, tile in _TILES.items() if m <= rows)
    tile = replace(tile, words=min(tile.words, packing.plane))
    turns = packing.blocks(n, k)[1] * (packing.plane // tile.words)
    num_tiles = -(-m // tile.m) * -(-n // tile.n)
    parts = round(_WARPS * device.num_sms / (num_tiles * tile.warps))
    tile = replace(tile, parts=max(min(parts, turns // 2, _MOST_PARTS), 1))
    return _fitted(tile, packing, device.shared_bytes - _SCRATCH_BYTES)


def _fitted(tile: PackedTile, packing: Packing, most_bytes: int) -> PackedTile:
    """Return ``tile`` with as many stages as the memory holds, and half the words if none fits."""
    x_words = tile.m * WORD_BITS // packing.bits
    stage_bytes = (tile.n + x_words) * tile.words * (WORD_BITS // 8)
    stages = min(tile.stages, most_bytes // stage_bytes)
    return replace(tile, stages=max(stages, 1))
