"""Which layers have their words streamed, and in which tiles."""

from __future__ import annotations

from dataclasses import replace

import pytest

from quantdock_cuda.archs import describe
from quantdock_cuda.device import Device
from quantdock_cuda.packed_stream_tiling import MOST_KEPT, stream_tile
from quantdock_triton.packed_layout import Packing

HOPPER = Device(
    arch="sm_90", features=describe("sm_90").features, num_sms=132, shared_bytes=227 << 10
)
INT4 = Packing(bits=4, plane=64, group=128)


def test_few_rows_are_streamed_where_that_was_measured():
    assert stream_tile(INT4, HOPPER, 4096, 4096, 1) is not None
    assert stream_tile(INT4, HOPPER, 4096, 4096, 300) is None
    ampere = replace(HOPPER, arch="sm_80", features=describe("sm_80").features)
    assert stream_tile(INT4, ampere, 4096, 4096, 1) is None


def test_columns_come_in_whole_planes():
    assert stream_tile(INT4, HOPPER, 4096, 4096 + 64, 1) is not None
    assert stream_tile(INT4, HOPPER, 4096, 4096 + 32, 1) is None


@pytest.mark.parametrize("k", [64, 4096, 14336, 28672, 131072])
def test_what_a_program_keeps_is_bounded(k):
    tile = stream_tile(INT4, HOPPER, 8192, k, 1)
    steps = INT4.blocks(1, k)[1]
    assert tile.keeps_x and tile.parts <= steps
    assert -(-steps // tile.parts) * INT4.columns * 2 <= MOST_KEPT


@pytest.mark.parametrize(
    "n, k, m, found",
    [
        (4096, 4096, 1, (8, 64, 1)),
        (4096, 14336, 1, (8, 64, 0)),  # more than two turns
        (6144, 4096, 1, (4, 72, 0)),
        (14336, 4096, 1, (4, 72, 0)),
        (28672, 8192, 1, (4, 64, 0)),
        (6144, 4096, 8, (8, 128, 0)),
        (14336, 4096, 8, (4, 128, 0)),
    ],
)
def test_programs_are_those_that_were_measured_fastest(n, k, m, found):
    tile = stream_tile(INT4, HOPPER, n, k, m)
    assert (tile.warps, tile.registers, tile.ahead) == found and tile.early


@pytest.mark.parametrize(
    "n, kept, registers",
    [(8192, True, 72), (8448 + 16, False, 72), (14336, False, 72), (14800, False, 64)],
)
def test_one_row_comes_by_the_cache_where_there_are_many_programs(n, kept, registers):
    tile = stream_tile(INT4, HOPPER, n, 65536, 1)
    assert (tile.keeps_x, tile.registers, tile.x_rows) == (kept, registers, 1)
    assert (tile.parts > 1) == kept


@pytest.mark.parametrize("bits, group", [(8, 128), (4, 64), (4, 0)])
def test_one_row_is_kept_where_nothing_else_was_measured(bits, group):
    packing = Packing(bits=bits, plane=64, group=group)
    tile = stream_tile(packing, HOPPER, 28672, 8192, 1)
    assert (tile.keeps_x, tile.registers) == (True, 64)


FLOATS = [Packing(bits=4, plane=64, group=g, scale=s) for g, s in ((32, "e8m0"), (16, "e4m3"))]


@pytest.mark.parametrize("floats", FLOATS)
@pytest.mark.parametrize("n, k", [(4096, 4096), (14336, 4096), (28672, 8192), (5760, 2880)])
def test_one_row_of_floats_is_streamed_as_of_integers(floats, n, k):
    assert stream_tile(floats, HOPPER, n, k, 1) == stream_tile(INT4, HOPPER, n, k, 1)
    assert stream_tile(floats, HOPPER, n, k, 9) is None


@pytest.mark.parametrize("floats", FLOATS)
@pytest.mark.parametrize(
    "n, rows, warps", [(8448, 32, 8), (8480, 16, 4), (14336, 16, 4), (14800, 32, 4)]
)
def test_floats_take_shorter_tiles_where_all_programs_run_at_once(floats, n, rows, warps):
    tile = stream_tile(floats, HOPPER, n, 4096, 8)
    assert (tile.rows, tile.warps) == (rows, warps) and tile.early
    assert stream_tile(INT4, HOPPER, n, 4096, 8).rows == 32


def test_programs_start_early_where_a_device_lets_them():
    late = replace(HOPPER, features=HOPPER.features - {"dependent_launch"})
    tile = stream_tile(INT4, late, 4096, 4096, 1)
    assert not tile.early and tile.ahead == 0
