"""Which tile takes how many rows, and that it fits what a device has."""

from __future__ import annotations

from dataclasses import replace

import pytest

from quantdock_cuda.archs import describe
from quantdock_cuda.device import Device
from quantdock_cuda.packed_alone import alone_tile
from quantdock_cuda.packed_matmul import RolesTile, sharers_of
from quantdock_cuda.packed_tiling import MOST_FUSED, rows_of_bucket, tile_for
from quantdock_triton.packed_layout import Packing

HOPPER = Device(
    arch="sm_90", features=describe("sm_90").features, num_sms=132, shared_bytes=227 << 10
)
AMPERE = replace(HOPPER, arch="sm_80", features=describe("sm_80").features)
INT4 = Packing(bits=4, plane=64, group=128)


@pytest.mark.parametrize("m, rows", [(1, 16), (17, 32), (64, 64), (65, 80), (81, 128), (129, 256)])
def test_few_rows_are_fused(m, rows):
    assert rows_of_bucket(m) == rows
    for device in (AMPERE, HOPPER):
        tile = tile_for(INT4, device, 4096, 4096, rows)
        assert tile is not None and tile.m >= min(rows, 64)


def test_many_rows_go_to_the_library_without_asynchronous_tensor_cores():
    assert tile_for(INT4, AMPERE, 4096, 4096, rows_of_bucket(MOST_FUSED + 1)) is None
    tile = tile_for(INT4, HOPPER, 4096, 4096, 4096)
    assert isinstance(tile, RolesTile) and tile.m == 256 and tile.parts == 1


@pytest.mark.parametrize(
    "n, k, m, found",
    [
        (4096, 4096, 128, (128, 1, 2)),
        (4096, 4096, 80, (64, 1, 1)),  # tiles of 128 rows would reach far beyond x
        (5760, 2880, 80, (64, 1, 1)),
        (4096, 4096, 512, (128, 2, 1)),
        (14336, 4096, 64, (64, 1, 1)),
        (14336, 4096, 128, (128, 2, 1)),
        (14336, 4096, 1024, (256, 2, 2)),
        (28672, 8192, 128, (128, 2, 2)),
        (28672, 8192, 256, (256, 2, 2)),
        (28672, 8192, 512, (256, 2, 2)),
        (4096, 4096, 384, (128, 2, 1)),
        # With 192 rows of the weight: one round, or two, where other tiles leave much of one idle.
        (4096, 4096, 768, (128, 3, 1)),
        (6144, 4096, 512, (128, 3, 1)),
        (6144, 4096, 1024, (128, 3, 1)),
        (14336, 4096, 384, (128, 3, 1)),
        (2112, 7168, 768, (128, 3, 2)),
    ],
)
def test_tiles_are_those_that_were_measured_fastest(n, k, m, found):
    tile = tile_for(INT4, HOPPER, n, k, m)
    assert isinstance(tile, RolesTile) and (tile.m, tile.groups, tile.parts) == found


@pytest.mark.parametrize("m", [384, 512, 640, 768, 1024])
@pytest.mark.parametrize("n", [4096, 6144, 14336])
def test_codes_of_8_bits_take_tiles_that_they_were_measured_with(n, m):
    tile = tile_for(Packing(bits=8, plane=64, group=128), HOPPER, n, 4096, m)
    assert tile is None or (isinstance(tile, RolesTile) and tile.groups <= 2)


@pytest.mark.parametrize(
    "n, k, m, found",
    [
        (4096, 4096, 16, (1, 3, 4)),  # four steps for each program, which are in flight at once
        (4096, 14336, 16, (2, 2, 4)),
        (14336, 4096, 16, (1, 4, 1)),
        (28672, 8192, 16, (1, 4, 2)),  # more than half of the programs have a tile
        (4096, 4096, 32, (1, 3, 4)),
        (14336, 4096, 32, (2, 2, 1)),
    ],
)
def test_few_rows_share_sums_where_there_are_few_tiles(n, k, m, found):
    tile = tile_for(INT4, HOPPER, n, k, m)
    assert isinstance(tile, RolesTile) and (tile.groups, tile.resident, tile.parts) == found


@pytest.mark.parametrize(
    "n, k, parts", [(4096, 4096, 4), (5760, 2880, 2), (14336, 4096, 1), (28672, 8192, 2)]
)
def test_four_programs_of_codes_that_are_floats(n, k, parts):
    packing = Packing(bits=4, plane=64, group=32, scale="e8m0")
    tile = tile_for(packing, HOPPER, n, k, 16)
    assert isinstance(tile, RolesTile) and (tile.resident, tile.parts) == (4, parts)


@pytest.mark.parametrize("bits, plane", [(4, 64), (4, 32), (8, 64), (8, 32)])
@pytest.mark.parametrize("n, k", [(320, 32), (4096, 4096), (4096, 14336), (28672, 8192)])
def test_tiles_of_few_rows_fit_the_memory(bits, plane, n, k):
    packing = Packing(bits=bits, plane=plane, group=plane)
    for m in (16, 32):
        tile = tile_for(packing, HOPPER, n, k, m)
        assert tile.shared_bytes(packing) * tile.resident <= HOPPER.shared_bytes
        assert tile.stages >= 2 and tile.x_stages >= 2
        assert 16 // bits % tile.taken == 0


@pytest.mark.parametrize(
    "num_tiles, parts, found",
    [(448, 1, 0), (448, 2, 104), (448, 4, 132), (96, 2, 132), (132, 2, 0), (40, 2, 80)],
)
def test_programs_share_the_tiles_of_the_last_round(num_tiles, parts, found):
    """132 programs at once: of 448 tiles, 52 are left after three rounds."""
    assert sharers_of(RolesTile(m=256, parts=parts), num_tiles, 16, 132) == found


def test_a_step_has_one_program():
    assert sharers_of(RolesTile(m=16, parts=16), 8, 2, 132) == 16


@pytest.mark.parametrize("num_tiles, found", [(20, 80), (33, 132), (34, 0), (140, 32)])
def test_sums_of_one_order_are_all_in_as_many_parts(num_tiles, found):
    tile = RolesTile(m=16, parts=4, joined=4)
    assert sharers_of(tile, num_tiles, 16, 132) == found


@pytest.mark.parametrize(
    "n, k, m, found",
    [
        (4096, 4096, 64, (64, 1, 4)),
        (4096, 4096, 128, (64, 1, 1)),
        (4096, 4096, 256, (128, 1, 1)),
        (4096, 4096, 1024, (128, 2, 1)),  # no tile whose programs would keep two sums of 256 rows
        (2112, 7168, 128, (64, 1, 4)),
        (2112, 7168, 1024, (128, 1, 1)),
        (6144, 4096, 512, (128, 3, 1)),
        (14336, 4096, 128, (128, 2, 1)),
        (14336, 4096, 512, (256, 2, 1)),
        (4096, 14336, 128, (128, 1, 4)),
        (28672, 8192, 64, (64, 2, 1)),
        (28672, 8192, 1024, (256, 2, 1)),
    ],
)
def test_sums_of_one_order_take_tiles_that_were_measured_fastest(n, k, m, found):
    tile = alone_tile(INT4, HOPPER, n, k, m)
    assert isinstance(tile, RolesTile) and (tile.m, tile.groups, tile.parts) == found
    few = alone_tile(INT4, HOPPER, n, k, 16)
    assert isinstance(few, RolesTile) and (tile.joined, tile.folded) == (few.joined, True)
    assert tile.parts in (1, tile.joined)


def test_the_largest_products_go_to_the_library():
    assert tile_for(INT4, HOPPER, 28672, 8192, 2048) is not None
    assert tile_for(INT4, HOPPER, 28672, 8192, 4096) is None
    assert tile_for(INT4, HOPPER, 2112, 7168, 4096) is None  # tiles would leave the GPU half idle
    assert tile_for(INT4, HOPPER, 2112, 7168, 512) is not None


@pytest.mark.parametrize("n, k", [(4096, 4096), (14336, 4096), (320, 32)])
@pytest.mark.parametrize("m", [16, 32, 64, 128, 256, 512, 4096])
@pytest.mark.parametrize("bits, plane", [(4, 64), (4, 32), (4, 16), (8, 64), (8, 32), (8, 16)])
def test_tiles_with_roles_fit_the_memory(bits, plane, m, n, k):
    packing = Packing(bits=bits, plane=plane, group=plane)
    tile = tile_for(packing, HOPPER, n, k, m)
    assert isinstance(tile, RolesTile)
    # A multiprocessor has 228 KiB, of which it keeps one for each program.
    assert (tile.shared_bytes(packing) + 1024) * tile.resident <= 228 << 10
    assert tile.stages >= 2
    steps = packing.blocks(n, k)[1]  # few rows name as many parts for every K
    assert tile.parts <= (steps if m > 32 else 4)


def test_narrow_layers_divide_their_sums():
    assert tile_for(INT4, AMPERE, 1024, 8192, 16).parts > 1
    assert tile_for(INT4, AMPERE, 131072, 4096, 16).parts == 1
    assert tile_for(INT4, AMPERE, 1024, 256, 16).parts == 1


@pytest.mark.parametrize("shared_bytes", [99 << 10, 163 << 10, 227 << 10])
@pytest.mark.parametrize("bits, plane", [(4, 64), (4, 32), (8, 64), (8, 32)])
def test_stages_fit_the_memory(bits, plane, shared_bytes):
    device = replace(AMPERE, shared_bytes=shared_bytes)
    packing = Packing(bits=bits, plane=plane, group=0)
    for m in (16, 32, 64, 256):
        tile = tile_for(packing, device, 4096, 4096, m)
        assert tile.words <= plane and tile.stages >= 2
        stage = (tile.n + tile.m * 16 // bits) * tile.words * 2
        assert tile.stages * stage < shared_bytes


@pytest.mark.parametrize("n, k", [(64, 32), (320, 2048), (4096, 4096), (28672, 8192)])
@pytest.mark.parametrize("bits, plane", [(4, 64), (4, 32), (8, 64)])
def test_rows_alone_are_added_up_alike_whatever_their_number(bits, plane, n, k):
    packing = Packing(bits=bits, plane=plane, group=plane)
    rows = [rows_of_bucket(m) for m in (1, 16, 17, 64, 65, 300, 5000)]
    tiles = [alone_tile(packing, HOPPER, n, k, m) for m in rows]
    assert len({(tile.joined, tile.folded) for tile in tiles}) == 1
    assert all(tile.parts in (1, tile.joined) for tile in tiles)
    assert tiles[0].parts == tiles[0].joined <= packing.blocks(n, k)[1]
    assert all(t.shared_bytes(packing) * t.resident <= HOPPER.shared_bytes for t in tiles)
    assert len({alone_tile(packing, AMPERE, n, k, m) for m in rows}) == 1
