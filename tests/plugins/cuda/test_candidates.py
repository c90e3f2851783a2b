"""Which tiles are tried: those that the kernels take, the GPU holds, and no more than help."""

from __future__ import annotations

import pytest

from quantdock_cuda import block_matmul
from quantdock_cuda.archs import describe
from quantdock_cuda.device import Device
from quantdock_cuda.tiling import BLOCK, needs
from quantdock_cuda.tuning.candidates import tiles
from quantdock_triton.tile import Form

SIZES = {"sm_80": (108, 163), "sm_89": (128, 99), "sm_90": (132, 227), "sm_120": (188, 99)}
FORMS = (Form(), BLOCK, Form(element="int8"), Form(weight_only=True))


def device(arch):
    num_sms, kib = SIZES[arch]
    features = describe(arch).features
    return Device(arch=arch, features=features, num_sms=num_sms, shared_bytes=kib << 10)


@pytest.mark.parametrize("arch", SIZES)
@pytest.mark.parametrize("form", FORMS)
def test_every_tile_runs_there(arch, form):
    facts = device(arch)
    for m in (1, 16, 32, 64, 128, 256, 8192):
        found = tiles(form, facts, m, 4096, 7168)
        assert 0 < len(found) < 500 and len(set(found)) == len(found)
        for tile in found:
            assert needs(tile) <= facts.features
            assert tile.shared_bytes(form) * tile.resident <= facts.shared_bytes
            assert not tile.roles or block_matmul.takes(form, tile, 7168)


def test_sums_are_divided_where_there_are_few_tiles():
    few = {tile.parts for tile in tiles(Form(), device("sm_90"), 16, 2112, 7168)}
    many = {tile.parts for tile in tiles(Form(), device("sm_90"), 16, 28672, 8192)}
    assert few == {1, 2, 3, 4, 6, 8} and max(many) == 2


def test_roles_are_tried_for_blocks_on_hopper():
    assert any(tile.roles for tile in tiles(BLOCK, device("sm_90"), 64, 4096, 4096))
    assert not any(tile.roles for tile in tiles(Form(), device("sm_90"), 64, 4096, 4096))
    assert not any(tile.roles for tile in tiles(BLOCK, device("sm_120"), 64, 4096, 4096))


@pytest.mark.parametrize(
    "m, n, parts",
    [
        (128, 2112, {1, 2, 3, 4, 6}),  # 17 tiles of 128 x 128
        (256, 4096, {1, 2}),
        (2048, 2112, {1}),
    ],
)
def test_programs_with_roles_have_one_part_each(m, n, parts):
    found = tiles(BLOCK, device("sm_90"), m, n, 7168)
    assert {t.parts for t in found if t.roles and (t.m, t.n) == (128, 128)} == parts
