"""The kernel whose warps have roles compiles for sm_90, and says which layers it takes."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from compiled_code import MOST_SPILLED, compiled_gluon, spilled_bytes
from quantdock_cuda import block_kernel, block_matmul
from quantdock_cuda.tiling import BLOCK
from quantdock_triton.tile import Form, parse_tile


@pytest.mark.parametrize(
    "text",
    [
        "8x64x128 stages=6 resident=3 swap roles",
        "16x128x128 resident=2 swap roles",
        "64x64x128 parts=2 stages=6 resident=2 roles",
        "64x32x128 stages=12 slices=2 roles",
        "64x128x128 resident=2 roles",
        "128x128x128 stages=6 tma roles",
        "128x128x256 stages=3 tma roles",
        "64x32x256 stages=6 slices=2 roles",
    ],
)
def test_compiles(text, tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    tile = parse_tile(text)
    registers, others = block_matmul.registers_of(tile)
    kernel = block_kernel.block_matmul
    layout = block_matmul.LAYOUT
    numbers = ("m", "n", "steps", "quads", "b_scale_row", "parts", "num_items")
    kinds = dict.fromkeys(numbers, "i32")
    kinds |= {name: "*fp32" for name in ("a_scale", "b_scale", "partial")}
    kinds |= {"out": "*bf16", "counters": "*i32"}
    kinds |= {
        name: f"tensordesc<fp8e4nv[{rows}, 128],{layout!r}>"
        for name, rows in (("a", tile.m), ("b", tile.n))
    }
    if tile.tma:
        width = min(tile.n, 64)
        kinds["out"] = f"tensordesc<bf16[64, {width}],{block_matmul.result_layout(tile)!r}>"
    constants = {"TILE": tile, "WEIGHT_ROWS": 128, "HAS_BIAS": False, "bias": None,
                 "SPLIT": tile.parts > 1, "COPIES": tile.tma, "REGISTERS": others}  # fmt: skip
    made = compiled_gluon(kernel, kinds, constants, num_warps=4, maxnreg=registers)
    ptx = made.asm["ptx"]
    assert "wgmma.mma_async" in ptx and "cp.async.bulk.tensor" in ptx and "setmaxnreg" in ptx
    assert "griddepcontrol.wait" in ptx and spilled_bytes(made.asm) <= MOST_SPILLED
    assert ("cp.async.bulk.tensor.2d.global.shared" in ptx) is tile.tma
    assert made.metadata.shared <= 227 << 10


@pytest.mark.parametrize(
    "form, text, k, takes",
    [
        (BLOCK, "64x128x128 roles", 256, True),
        (BLOCK, "64x128x128 roles", 264, False),  # the copy engine wants rows of 16 bytes
        (BLOCK, "64x256x128 roles", 256, False),  # two rows of scales in a tile
        (replace(BLOCK, weight_rows=64), "64x64x128 roles", 256, True),
        (replace(BLOCK, weight_rows=64), "64x128x128 roles", 256, False),
        (BLOCK, "64x64x128 slices=2 roles", 256, True),
        (BLOCK, "64x64x256 slices=2 roles", 256, True),
        (BLOCK, "64x64x512 slices=2 roles", 512, False),
        (BLOCK, "64x64x256 stages=3 slices=2 roles", 256, False),  # a slot of both groups in turn
        (BLOCK, "64x64x128 stages=2 slices=2 roles", 512, False),  # a group waits for its own slot
        (BLOCK, "64x64x128 stages=1 roles", 256, False),
        (BLOCK, "64x64x256 stages=1 roles", 256, True),
        (BLOCK, "128x64x128 slices=2 roles", 256, False),
        (BLOCK, "16x64x128 swap tma roles", 256, False),
        (BLOCK, "128x64x128 resident=3 roles", 256, False),
        (Form(), "64x128x128 roles", 256, False),
        (Form(x_cols=128, weight_cols=128), "64x128x128 roles", 256, False),
    ],
)
def test_takes(form, text, k, takes):
    assert block_matmul.takes(form, parse_tile(text), k) is takes


@pytest.mark.parametrize(
    "text, n, dtype, copies",
    [
        ("128x128x128 tma roles", 2120, torch.float16, True),
        ("128x128x128 tma roles", 2120, torch.float32, False),
        ("128x128x128 tma roles", 2116, torch.float16, False),  # rows of 8 bytes more
        ("128x128x128 roles", 2120, torch.float16, False),
    ],
)
def test_the_copy_engine_stores_whole_units(text, n, dtype, copies):
    out = torch.empty((4, n), dtype=dtype)
    assert block_matmul.stores_by_copy(parse_tile(text), out) is copies


@pytest.mark.parametrize(
    "text, has_room",
    [
        ("128x128x128 roles", True),
        ("128x64x128 resident=2 roles", False),
        ("64x128x128 slices=2 roles", True),
        ("64x32x128 resident=2 slices=2 roles", True),
        ("16x128x128 resident=3 swap roles", False),
    ],
)
def test_registers_hold_a_sum_and_two_products(text, has_room):
    assert block_matmul.has_room(parse_tile(text)) is has_room


@pytest.mark.parametrize(
    "text, num_tiles, parts",
    [
        ("8x64x128 parts=4 resident=2 swap roles", 64, 4),
        ("8x64x128 parts=6 resident=2 swap roles", 33, 6),
        ("8x64x128 parts=6 resident=2 swap roles", 66, 4),  # in as many as programs fit
        ("128x128x256 stages=3 parts=8 roles", 67, 1),
        ("128x128x256 stages=3 parts=8 roles", 136, 1),
        ("128x128x256 stages=3 parts=8 roles", 0, 8),
    ],
)
def test_a_program_has_one_part_of_a_sum(text, num_tiles, parts):
    tile = parse_tile(text)
    assert block_matmul.parts_of(tile, num_tiles, 32, 132 * tile.resident) == parts


def test_no_sum_is_divided_among_more_than_there_are_counters():
    tile = parse_tile("128x128x256 stages=3 parts=2 roles")
    assert block_matmul.parts_of(tile, 8192, 32, 1 << 15) == 2
    assert block_matmul.parts_of(tile, 8193, 32, 1 << 15) == 1


def test_no_sum_has_more_parts_than_steps():
    assert block_matmul.parts_of(parse_tile("8x64x128 parts=4 swap roles"), 1, 3, 132) == 3
