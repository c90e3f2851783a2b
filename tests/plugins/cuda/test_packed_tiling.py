"""Which tile takes how many rows, and that it fits what a device has."""

from __future__ import annotations

from dataclasses import replace

import pytest

from quantdock_cuda.archs import describe
from quantdock_cuda.device import Device
from quantdock_cuda.packed_tiling import MOST_FUSED, rows_of_bucket, tile_for
from quantdock_triton.packed_layout import Packing

HOPPER = Device(
    arch="sm_90", features=describe("sm_90").features, num_sms=132, shared_bytes=227 << 10
)
INT4 = Packing(bits=4, plane=64, group=128)


@pytest.mark.parametrize("m, rows", [(1, 16), (17, 32), (64, 64), (65, 256), (256, 256)])
def test_few_rows_are_fused(m, rows):
    assert rows_of_bucket(m) == rows
    tile = tile_for(INT4, HOPPER, 4096, 4096, rows)
    assert tile is not None and tile.m >= min(rows, 64)


def test_many_rows_go_to_the_library():
    assert rows_of_bucket(MOST_FUSED + 1) > MOST_FUSED
    assert tile_for(INT4, HOPPER, 4096, 4096, MOST_FUSED + 1) is None


def test_narrow_layers_divide_their_sums():
    assert tile_for(INT4, HOPPER, 1024, 8192, 16).parts > 1
    assert tile_for(INT4, HOPPER, 131072, 4096, 16).parts == 1
    assert tile_for(INT4, HOPPER, 1024, 256, 16).parts == 1


@pytest.mark.parametrize("shared_bytes", [99 << 10, 163 << 10, 227 << 10])
@pytest.mark.parametrize("bits, plane", [(4, 64), (4, 32), (8, 64), (8, 32)])
def test_stages_fit_the_memory(bits, plane, shared_bytes):
    device = replace(HOPPER, shared_bytes=shared_bytes)
    packing = Packing(bits=bits, plane=plane, group=0)
    for m in (16, 32, 64, 256):
        tile = tile_for(packing, device, 4096, 4096, m)
        assert tile.words <= plane and tile.stages >= 2
        stage = (tile.n + tile.m * 16 // bits) * tile.words * 2
        assert tile.stages * stage < shared_bytes
