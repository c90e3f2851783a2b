"""The kernel that quantizes x itself compiles for sm_90, and says which layers it takes."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from compiled_code import compiled_gluon, spilled_bytes
from quantdock.formats import parse_spec
from quantdock_cuda import fused_kernel
from quantdock_cuda.archs import describe
from quantdock_cuda.block_matmul import LAYOUT, registers_of
from quantdock_cuda.device import Device
from quantdock_cuda.fused_matmul import fitted, matmul, plan_of, rows_of, takes, tiles
from quantdock_cuda.tiling import BLOCK
from quantdock_triton.encoding import Encoding
from quantdock_triton.tile import Form, parse_tile

SHARED = 227 << 10
GROUPS = "fp8_e4m3[1x128]:dynamic"
ROWS = "fp8_e4m3[1x*]:dynamic"
STATIC = "fp8_e4m3[*x*]"


def facts(arch="sm_90"):
    return Device(arch=arch, features=describe(arch).features, num_sms=132, shared_bytes=SHARED)


@pytest.mark.parametrize(
    "text, spec, rows, num_static",
    [
        ("8x64x128 parts=4 resident=2 slices=2 swap roles", GROUPS, 1, 0),
        ("16x64x128 slices=2 swap roles", "fp8_e4m3[1x128]:e8m0:ceil:dynamic", 16, 0),
        ("8x64x128 parts=4 resident=2 swap roles", ROWS, 1, 0),
        ("8x64x128 resident=2 swap roles", ROWS, 8, 0),
        ("8x64x128 resident=2 swap roles", "fp8_e4m3[*x*]:dynamic", 8, 0),
        ("16x64x128 slices=2 swap roles", STATIC, 16, 3),
    ],
)
def test_compiles(text, spec, rows, num_static, tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    parsed, k = parse_spec(spec), 4096
    form = BLOCK if parsed.cols else Form()
    plan = plan_of(form, parsed, parse_tile(text), k, rows)
    tile = fitted(parse_tile(text), plan, rows, SHARED)
    registers, others = registers_of(tile)
    encoding = Encoding(parsed, k, True)
    kernel = fused_kernel.fused_matmul
    kinds = dict.fromkeys(("m", "n", "k", "steps", "parts", "num_items"), "i32")
    kinds |= {"stride_x": "i32", "weight_scale_row": "i32", "counters": "*i32"}
    kinds |= dict.fromkeys(("weight_scale", "input_scale", "partial"), "*fp32")
    kinds |= {"x": "*bf16", "out": "*bf16", "weight": f"tensordesc<fp8e4nv[64, 128],{LAYOUT!r}>"}
    constants = {"TILE": tile, "PLAN": plan, "ROWS": rows, "WEIGHT_ROWS": form.weight_rows,
                 "NUM": num_static, "SPEC": (*encoding.scale, *encoding.range), "HAS_BIAS": False,
                 "bias": None, "SPLIT": tile.parts > 1, "REGISTERS": others}  # fmt: skip
    made = compiled_gluon(kernel, kinds, constants, num_warps=4, maxnreg=registers)
    ptx = made.asm["ptx"]
    assert "wgmma.mma_async" in ptx and "cvt.rn.satfinite.e4m3x2.f32" in ptx
    assert "griddepcontrol.wait" in ptx and spilled_bytes(made.asm) == 0
    assert made.metadata.shared <= SHARED


@pytest.mark.parametrize(
    "form, spec, k, rows, dtype, arch, is_taken",
    [
        (BLOCK, GROUPS, 4096, 1, torch.bfloat16, "sm_90", True),
        (BLOCK, GROUPS, 4096, 16, torch.float16, "sm_90", True),
        (BLOCK, GROUPS, 4096, 16, torch.float32, "sm_90", False),
        (BLOCK, GROUPS, 4100, 1, torch.bfloat16, "sm_90", False),  # rows that are no whole vectors
        (BLOCK, GROUPS, 4096, 1, torch.bfloat16, "sm_100", False),
        (BLOCK, GROUPS, 4096, 1, torch.bfloat16, "sm_89", False),
        (replace(BLOCK, weight_rows=96), GROUPS, 4096, 1, torch.bfloat16, "sm_90", False),
        (replace(BLOCK, weight_cols=64), GROUPS, 4096, 1, torch.bfloat16, "sm_90", False),
        (Form(), ROWS, 4096, 1, torch.bfloat16, "sm_90", True),
        (Form(), ROWS, 4096, 8, torch.bfloat16, "sm_90", False),  # the scale needs whole rows first
        (Form(), "fp8_e4m3[*x*]:dynamic", 4096, 1, torch.bfloat16, "sm_90", True),
        (Form(), STATIC, 4096, 16, torch.bfloat16, "sm_90", True),
        (Form(weight_rows=128), STATIC, 4096, 16, torch.bfloat16, "sm_90", False),
        (Form(), "int8[1x*]:dynamic", 4096, 1, torch.bfloat16, "sm_90", False),
        (Form(element="int8"), ROWS, 4096, 1, torch.bfloat16, "sm_90", False),
    ],
)
def test_takes(form, spec, k, rows, dtype, arch, is_taken):
    assert takes(form, parse_spec(spec), facts(arch), k, rows, dtype) is is_taken


def test_rows_of_tiles():
    assert [rows_of(m) for m in (1, 2, 8, 9, 16)] == [1, 8, 8, 16, 16]


@pytest.mark.parametrize("n, k", [(320, 512), (2112, 7168), (7168, 18432), (28672, 8192)])
@pytest.mark.parametrize("rows", [1, 8, 16])
def test_work_is_divided_for_the_gpu(n, k, rows):
    for tile in tiles(facts(), n, k, rows):
        plan = plan_of(BLOCK, parse_spec(GROUPS), tile, k, rows)
        programs, steps = -(-n // tile.n) * tile.parts, -(-k // 128)
        assert tile.parts == 1 or programs <= tile.resident * 132
        assert plan.pieces * (8 if rows == 1 else 1) * tile.slices * tile.parts >= steps
        assert plan.pieces % plan.ahead == 0
        made = fitted(tile, plan, rows, SHARED)
        assert made is None or (made.stages >= 2 * tile.slices and made.stages % tile.slices == 0)


@pytest.mark.parametrize(
    "n, k, rows, is_taken",
    [
        (2112, 7168, 16, True),
        (4096, 7168, 8, True),
        (4096, 7168, 16, False),
        (14336, 4096, 8, True),
        (14336, 4096, 16, False),
        (28672, 8192, 8, False),  # not measured
        (28672, 8192, 1, True),
        (7168, 18432, 1, False),  # no room for as many codes
    ],
)
def test_what_takes_less_time_is_taken(n, k, rows, is_taken):
    spec = parse_spec(GROUPS)
    found = matmul(BLOCK, spec, facts(), n, k, rows, 0, torch.bfloat16, False)
    assert (found is not None) is is_taken
