"""Experts of packed codes whose warps have roles: the kernel compiles for sm_90; who takes it."""

from __future__ import annotations

import pytest

from compiled_code import compiled_gluon, spilled_bytes
from quantdock_cuda import expert_packed_kernel, packed_matmul
from quantdock_cuda.device import Device
from quantdock_cuda.expert_packed_matmul import forms_of
from quantdock_cuda.expert_tiles import PACKED_ROLES, packed_tile, roles_tile
from quantdock_cuda.packed_matmul import RolesTile, layout_of
from quantdock_cuda.packed_tiling import as_it_fits
from quantdock_triton.packed_layout import Packing
from quantdock_triton.packed_matmul import PackedTile

HOPPER = Device(
    arch="sm_90", features=frozenset({"tma", "wgmma"}), num_sms=132, shared_bytes=227 << 10
)
AMPERE = Device(arch="sm_80", features=frozenset(), num_sms=108, shared_bytes=166912)
INT4 = Packing(bits=4, plane=64, group=128)
INT8 = Packing(bits=8, plane=64, group=0)
MXFP4 = Packing(bits=4, plane=64, group=32, scale="e8m0")
NVFP4 = Packing(bits=4, plane=32, group=16, scale="e4m3")
MOST_SPILLED = 128  # of a thread: numbers of an item of work, where threads have few registers
NUMBERS = ("num_tiles", "n", "steps", "num_experts", "top_k", "groups", "stride_scale",
           "stride_row")  # fmt: skip
POINTERS = {"scale": "*fp32", "zero": "*fp32", "stored": "*i32", "bias": "*bf16", "out": "*bf16",
            "plan": "*i32", "order": "*i32"}  # fmt: skip


def compiled(packing, tile, *, k=4096, direct=False, is_first=False, **absent):
    """Return a compiled kernel; ``absent`` are pointers that are None."""
    plane, layout = packing.plane, layout_of(packing.plane)
    absent["zero" if packing.is_float else "stored"] = None
    if direct or is_first:
        absent["order"] = None
    kinds = {name: kind for name, kind in POINTERS.items() if name not in absent}
    kinds |= dict.fromkeys(NUMBERS, "i32") | ({"plan": "*i64"} if direct else {})
    kinds["words"] = f"tensordesc<i16[64, {plane}],{layout!r}>"
    kinds["x"] = f"tensordesc<bf16[{tile.m}, {tile.taken * plane}],{layout!r}>"
    registers, others = packed_matmul.registers_of(tile)
    form, half = forms_of(packing, tile, k)
    constants = {"FORM": form, "HALF": half, "REGISTERS": others,
                 "DIRECT": direct, "GATHERS": is_first} | absent  # fmt: skip
    aligned = [name for name in (*POINTERS, "n") if name in kinds]
    options = {"num_warps": 4, "maxnreg": registers, "launch_pdl": True}
    kernel = expert_packed_kernel.packed_experts
    return compiled_gluon(kernel, kinds, constants, aligned=aligned, **options)


@pytest.mark.parametrize("packing", [INT4, MXFP4, NVFP4, INT8], ids=str)
@pytest.mark.parametrize("tile", PACKED_ROLES.values(), ids=str)
def test_compiles(packing, tile, tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    if packing.bits == 8:
        tile = roles_tile(packing, HOPPER, tile.m)
    made = compiled(packing, as_it_fits(tile, packing, HOPPER), k=2880, zero=None)
    ptx = made.asm["ptx"]
    for m in (tile.m, tile.m // 2):  # that of tiles that are half empty
        product = f"wgmma.mma_async.sync.aligned.m64n{m}k16.f32.bf16.bf16"
        assert (product in ptx) is (m == tile.m or tile.m >= 64)
    assert "cp.async.bulk.tensor" in ptx and "setmaxnreg" in ptx
    assert "griddepcontrol.wait" in ptx and "griddepcontrol.launch_dependents" in ptx
    assert spilled_bytes(made.asm) <= MOST_SPILLED
    assert (made.metadata.shared + 1024) * tile.resident <= 228 << 10


@pytest.mark.parametrize("is_first", [False, True])
@pytest.mark.parametrize("direct", [False, True])
def test_compiles_for_pairs_that_are_sorted_or_not(direct, is_first, tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    tile = roles_tile(MXFP4, HOPPER, 0)
    made = compiled(MXFP4, tile, direct=direct, is_first=is_first, bias=None)
    assert "wgmma.mma_async" in made.asm["ptx"] and spilled_bytes(made.asm) == 0


def test_zero_points_of_each_expert_are_copied_too(tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    tile = RolesTile(m=64, taken=2, resident=2)
    with_zeros, without = (
        compiled(INT4, tile, **absent).asm["ptx"].count("cp.async.ca.shared.global")
        for absent in ({}, {"zero": None})
    )
    assert with_zeros == 2 * without > 0


def test_integers_that_are_sorted_have_roles_on_hopper():
    rows = (0, 1, 4, 8, 16, 64, 1024)
    for is_first in (False, True):
        tiles = [packed_tile(INT4, HOPPER, number, is_first=is_first) for number in rows]
        assert [isinstance(tile, RolesTile) for tile in tiles] == [number > 0 for number in rows]
        others = [packed_tile(INT4, AMPERE, number, is_first=is_first) for number in rows]
        assert all(isinstance(tile, PackedTile) for tile in others)


@pytest.mark.parametrize("packing", [INT4, MXFP4, NVFP4, INT8], ids=str)
def test_both_products_have_tiles_of_one_height(packing):
    for rows in (8, 16, 32, 64, 128, 1024):
        heights = {roles_tile(one, HOPPER, rows).m for one in (packing, INT4)}
        assert len(heights) == 1
        assert roles_tile(packing, HOPPER, rows).shared_bytes(packing) <= 227 << 10


def test_a_last_step_that_is_short_has_fewer_products(tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    tile = as_it_fits(PACKED_ROLES[8], MXFP4, HOPPER)
    forms = {k: forms_of(MXFP4, tile, k)[0] for k in (2816, 2880, 2944)}
    assert [form.tail for form in forms.values()] == [0, 1, 2]
    counts = [
        compiled(MXFP4, tile, k=k).asm["ptx"].count("wgmma.mma_async.sync.aligned") for k in forms
    ]
    assert counts == [16, 20, 24]  # of 64 columns: four


def test_a_short_step_copies_less_of_x():
    tile = as_it_fits(PACKED_ROLES[64], MXFP4, HOPPER)
    found = [forms_of(MXFP4, tile, k)[0].skipped for k in (2816, 2880, 2944, 3008)]
    assert tile.taken == 2 and found == [0, 1, 1, 0]
