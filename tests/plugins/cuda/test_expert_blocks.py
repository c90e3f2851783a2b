"""Experts whose warps have roles: the kernel compiles for sm_90, and which products may have it."""

from __future__ import annotations

import pytest

from compiled_code import compiled_gluon, spilled_bytes
from quantdock_cuda import block_matmul, expert_block_kernel, expert_execution, expert_products
from quantdock_cuda.device import Device
from quantdock_cuda.expert_execution import Experts
from quantdock_cuda.expert_tiles import has_roles, scaled_tile
from quantdock_cuda.tiling import BLOCK
from quantdock_triton.tile import Form, parse_tile

HOPPER = Device(
    arch="sm_90", features=frozenset({"tma", "wgmma"}), num_sms=132, shared_bytes=232448
)
BLOCKS = "fp8_e4m3[128x128] x fp8_e4m3[1x128]:dynamic"
NUMBERS = ("num_rows", "n", "steps", "num_tiles", "num_items", "a_scale_group", "scale_expert",
           "scale_row")  # fmt: skip


@pytest.mark.parametrize(
    "text, scatters",
    [
        ("32x128x128 stages=5 resident=2 swap roles", True),
        ("64x128x128 resident=2 roles", True),
        ("64x128x128 stages=6 slices=2 roles", False),
        ("128x128x128 stages=6 roles", True),
        ("128x128x256 stages=3 roles", False),
    ],
)
def test_compiles(text, scatters, tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    tile, kernel = parse_tile(text), expert_block_kernel.expert_blocks
    registers, others = block_matmul.registers_of(tile)
    kinds = dict.fromkeys(NUMBERS, "i32") | dict.fromkeys(("plan", "order"), "*i32")
    kinds |= {"a_scale": "*fp32", "b_scale": "*fp32", "out": "*bf16", "bias": "*bf16"}
    kinds |= {
        name: f"tensordesc<fp8e4nv[{rows}, 128],{block_matmul.LAYOUT!r}>"
        for name, rows in (("a", tile.m), ("b", tile.n))
    }
    constants = {"TILE": tile, "WEIGHT_ROWS": 128, "HAS_BIAS": True, "SCATTERS": scatters,
                 "REGISTERS": others}  # fmt: skip
    made = compiled_gluon(kernel, kinds, constants, num_warps=4, maxnreg=registers)
    ptx = made.asm["ptx"]
    assert "wgmma.mma_async" in ptx and "cp.async.bulk.tensor" in ptx and "setmaxnreg" in ptx
    assert "griddepcontrol.wait" in ptx and spilled_bytes(made.asm) == 0
    assert made.metadata.shared * tile.resident <= 227 << 10


def test_only_blocks_of_codes_on_hopper_have_roles():
    assert has_roles(BLOCK, HOPPER, 1536, 2048)
    assert not has_roles(BLOCK, HOPPER, 1536, 2112)
    assert not has_roles(BLOCK, HOPPER, 1600, 2048)
    assert not has_roles(Form(), HOPPER, 1536, 2048)
    ampere = Device(arch="sm_80", features=frozenset(), num_sms=108, shared_bytes=166912)
    assert not has_roles(BLOCK, ampere, 1536, 2048)


def test_few_rows_and_layers_of_other_products_have_tiles_without():
    rows = (0, 1, 8, 16, 32, 64, 1024)
    tiles = [scaled_tile(BLOCK, HOPPER, 2048, number, roles=True) for number in rows]
    assert [tile.roles for tile in tiles] == [False] * 3 + [True] * 4
    assert [tile.m for tile in tiles[3:]] == [64, 64, 128, 128]
    assert not any(scaled_tile(BLOCK, HOPPER, 2048, number).roles for number in rows)


@pytest.mark.parametrize("w2, has", [(BLOCKS, True), ("int8[1x*] x int8[1x*]:dynamic", False)])
def test_both_products_of_a_layer_have_roles_or_none(w2, has, monkeypatch):
    monkeypatch.setattr(expert_products, "device_of", lambda device: HOPPER)
    monkeypatch.setattr(expert_execution, "device_of", lambda device: HOPPER)
    experts = Experts(products="scaled", schemes=(BLOCKS, w2), activation="silu", order="gate_up",
                      num_experts=8, hidden=256, intermediate=128)  # fmt: skip
    made = expert_execution.execution.__wrapped__(experts, (2, 2 if has else 256), 0)
    assert (made._w13.has_roles, made._w2.has_roles) == (has, has)
    assert made._w13.height(64) == made._w2.height(64) == (128 if has else 64)
