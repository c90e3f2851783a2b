"""Tiles for products of experts, by how many rows an expert has on the average.

Both products of a layer take tiles of one height, since they share one routing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from math import inf

from quantdock_cuda import block_matmul
from quantdock_cuda.device import Device
from quantdock_cuda.packed_matmul import RolesTile
from quantdock_cuda.packed_stream import StreamTile
from quantdock_cuda.packed_stream_tiling import stream_tile
from quantdock_cuda.packed_tiling import as_it_fits, fitted
from quantdock_cuda.tiling import needs
from quantdock_triton.launcher import ALIGNMENT
from quantdock_triton.packed_layout import Packing
from quantdock_triton.packed_matmul import PackedTile
from quantdock_triton.small_float_matmul import FloatTile, SmallFloat
from quantdock_triton.tile import Form, Tile

_SCRATCH_BYTES = 4096  # of shared memory, beside the stages
# The most rows of an expert that a tile is for; 0: where pairs are too few to be sorted.
SCALED: Mapping[float, Tile] = {
    0: Tile(m=16, n=64, k=128, swap=True),
    8: Tile(m=16, n=128, k=128, stages=3, swap=True),
    16: Tile(m=32, n=128, k=128, stages=3, swap=True),
    inf: Tile(m=64, n=128, k=128, stages=3, tma=True),
}
# Likewise of fp8 codes in blocks, where warps have roles (``expert_block_kernel``).
ROLES: dict[float, Tile] = {
    32: Tile(m=64, n=128, k=128, resident=2, roles=True),
    inf: Tile(m=128, n=128, k=256, stages=3, roles=True),
}
_LEAST_ROLES = 9  # rows: pairs are sorted, and no token is computed as if it were alone
_WHOLE = 128  # what sizes are multiples of with roles: others have not run yet
_LONG = range(4096, 8192)  # columns for which the second has a stage more
SMALL_FLOAT: Mapping[float, FloatTile] = {
    16: FloatTile(m=16, n=64, stages=2),
    32: FloatTile(m=32, n=128, warps=8, stages=3),
    inf: FloatTile(m=64, n=128, warps=8, stages=2),
}
PACKED: Mapping[float, PackedTile] = {
    8: PackedTile(m=16, n=64, words=64, stages=3),
    32: PackedTile(m=32, n=64, words=64, stages=3),
    96: PackedTile(m=64, n=128, words=32, warps=8, stages=3, folded=True),
    inf: PackedTile(m=128, n=64, words=32, stages=3, folded=True),
}
# Likewise of packed codes, where warps have roles (``expert_packed_kernel``).
PACKED_ROLES: Mapping[float, RolesTile] = {
    8: RolesTile(m=16, stages=4, taken=4, x_stages=3, resident=4),
    16: RolesTile(m=32, groups=2, stages=4, taken=4, x_stages=2, resident=2),
    64: RolesTile(m=64, groups=2, stages=2, taken=2, x_stages=4, resident=2, folded=True),
    inf: RolesTile(m=128, groups=3, stages=3, taken=2, x_stages=4, folded=True),
}
# Of codes of 8 bits, which three groups of warps have not multiplied yet.
_OF_BYTES = RolesTile(m=128, groups=2, stages=4, taken=2, x_stages=4, folded=True)
# Where words are streamed: the height alone counts (``streaming_tile``).
STREAM = StreamTile(rows=16, tokens=8, x_rows=8, warps=4)
_FLOATS_STREAMED = 2  # rows, at most; integers are where pairs are not sorted
_OF_W2 = PackedTile(m=64, n=64, words=32, stages=3, folded=True)  # in place of the third


def bucket(num_pairs: int, num_experts: int) -> int:
    """Return the number of rows an expert that stands for so many pairs: a power of two."""
    return 1 << max(-(-num_pairs // num_experts) - 1, 0).bit_length()


def has_roles(form: Form, device: Device, n: int, k: int) -> bool:
    """Return whether products with weights [n, k] may have tiles whose warps have roles."""
    return not (n % _WHOLE or k % _WHOLE) and all(
        needs(tile) <= device.features and block_matmul.takes(form, tile, k)
        for tile in ROLES.values()
    )


@lru_cache(maxsize=1024)
def scaled_tile(form: Form, device: Device, k: int, rows: int, *, roles: bool = False) -> Tile:
    """Return the tile for scaled codes of K columns, where experts have about so many rows.

    Args:
        roles: both products of the layer may have tiles whose warps have roles.
    """
    if roles and rows >= _LEAST_ROLES:
        return next(tile for most, tile in ROLES.items() if rows <= most)
    tile = next(tile for most, tile in SCALED.items() if rows <= most)
    if tile == SCALED[8] and k in _LONG:
        tile = replace(tile, stages=tile.stages + 1)
    if form.weight_only:
        tile = replace(tile, k=64)
    has_tma = tile.tma and "tma" in device.features and k % ALIGNMENT == 0
    tile = replace(tile, tma=has_tma and not form.weight_only)
    return tile.fitted(form, device.shared_bytes - _SCRATCH_BYTES)


@lru_cache(maxsize=1024)
def small_float_tile(kind: SmallFloat, device: Device, rows: int) -> FloatTile:
    """Return the tile for codes of 4 and 6 bits, where experts have about so many rows."""
    tile = next(tile for most, tile in SMALL_FLOAT.items() if rows <= most)
    most = device.shared_bytes - _SCRATCH_BYTES
    while replace(tile, stages=1).shared_bytes(kind.packing) > most:
        tile = replace(tile, n=tile.n // 2)
    return tile.fitted(kind.packing, most)


@lru_cache(maxsize=1024)
def packed_tile(
    packing: Packing, device: Device, rows: int, *, is_first: bool, streams: bool = False
) -> PackedTile | RolesTile | StreamTile:
    """Return the tile for codes in blocks of words, where experts have about so many rows.

    Args:
        is_first: the weight is w13; else it is w2.
        streams: both products of the layer may stream words.
    """
    if streams and rows <= (_FLOATS_STREAMED if packing.is_float else 0):
        return STREAM
    if packing.is_float or (rows > 0 and {"wgmma", "tma"} <= device.features):
        return roles_tile(packing, device, rows)
    tile = next(tile for most, tile in PACKED.items() if rows <= most)
    if tile == PACKED[96] and not is_first:
        tile = _OF_W2
    tile = replace(tile, words=min(tile.words, packing.plane))
    return fitted(tile, packing, device.shared_bytes - _SCRATCH_BYTES)


@lru_cache(maxsize=1024)
def roles_tile(packing: Packing, device: Device, rows: int) -> RolesTile:
    """Return the tile for packed codes by warps with roles, where experts have about so many rows.

    Args:
        rows: 0: pairs are not sorted.
    """
    tile = next(tile for most, tile in PACKED_ROLES.items() if rows <= most)
    tile = _OF_BYTES if packing.bits > 4 and tile.groups > 2 else tile
    return as_it_fits(tile, packing, device)


def may_stream(packing: Packing, device: Device, k: int) -> bool:
    """Return whether words of K columns may be streamed: ``packed_stream_tiling`` says of which."""
    return "wgmma" in device.features and k % packing.plane == 0


@lru_cache(maxsize=1 << 12)
def streaming_tile(packing: Packing, device: Device, n: int, k: int, *, direct: bool) -> StreamTile:
    """Return the tile in which the words of N rows of all experts together are streamed."""
    tile = stream_tile(packing, device, n, k, 1 if direct else STREAM.tokens)
    assert tile is not None, "products that may stream have such tiles"
    return replace(tile, parts=1, ahead=0, early=True)
