"""The kernel of packed codes whose warps have roles compiles for sm_90, to what it should."""

from __future__ import annotations

from dataclasses import replace

import pytest
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language import NVMMASharedLayout

from compiled_code import MOST_SPILLED, compiled_gluon, spilled_bytes
from quantdock_cuda import packed_kernel, packed_matmul, packed_operand
from quantdock_cuda.device import Device
from quantdock_cuda.packed_matmul import RolesTile
from quantdock_cuda.packed_tiling import _ROLES, as_it_fits
from quantdock_triton.packed_layout import Packing

POINTERS = {"scale": "*fp32", "zero": "*fp32", "bias": "*bf16", "out": "*bf16", "partial": "*fp32",
            "counters": "*i32"}  # fmt: skip
NUMBERS = ("m", "first_row", "n", "steps", "whole", "sharers", "shared", "groups", "stride_scale",
           "stride_row", "stride_out")  # fmt: skip
HOPPER = Device(arch="sm_90", features=frozenset(), num_sms=132, shared_bytes=227 << 10)
INT4 = Packing(bits=4, plane=64, group=128)
PLAIN = {"is_float": True, "is_plain": True, "scale_rows": 128}


def compiled(packing, tile, *, dtype="bf16", out="bf16", scales="fp32", plain=None, **absent):
    """Return a compiled kernel; ``absent`` are pointers that are None, ``plain`` of fp8 codes."""
    kernel, plane = packed_kernel.packed_matmul, packing.plane
    layout = NVMMASharedLayout(swizzle_byte_width=2 * plane, element_bitwidth=16, rank=2)
    kinds = {name: kind for name, kind in POINTERS.items() if name not in absent}
    kinds |= dict.fromkeys(NUMBERS, "i32") | {"out": f"*{out}"}
    kinds |= {name: f"*{scales}" for name in ("scale", "zero") if name in kinds}
    if packing.is_float:
        kinds["stored"], absent["zero"] = "*i32", None
    else:
        absent["stored"] = None
    kinds["words"] = f"tensordesc<i16[64, {plane}],{layout!r}>"
    kinds["x"] = f"tensordesc<{dtype}[{tile.m}, {tile.taken * plane}],{layout!r}>"
    registers, others = packed_matmul.registers_of(tile)
    form = replace(packed_matmul.form_of(packing, tile), split=tile.parts > 1, **(plain or {}))
    constants = {"FORM": form, "REGISTERS": others} | absent
    aligned = [
        *(name for name in (*POINTERS, "stored") if name in kinds),
        "first_row",
        "n",
        "stride_out",
    ]
    options = {"num_warps": 4, "maxnreg": registers, "launch_pdl": True}
    return compiled_gluon(kernel, kinds, constants, aligned=aligned, **options)


@pytest.mark.parametrize(
    "packing, tile, dtype, absent",
    [
        (INT4, RolesTile(m=128, groups=2, x_stages=7, folded=True), "bf16", {"zero": None}),
        (INT4, RolesTile(m=64, groups=2, x_stages=15, parts=2), "bf16", {"bias": None}),
        (INT4, RolesTile(m=128, groups=2, taken=2, folded=True, joined=4), "bf16", {"zero": None}),
        (Packing(bits=8, plane=32, group=32), RolesTile(m=64, folded=True), "fp16", {}),
        (Packing(bits=4, plane=64, group=0), RolesTile(m=64, parts=4, resident=2), "bf16", {}),
        (Packing(bits=8, plane=64, group=0), RolesTile(m=64, joined=4), "bf16", {"zero": None}),
    ],
)
def test_compiles(packing, tile, dtype, absent, tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    made = compiled(packing, tile, dtype=dtype, **absent)
    ptx, kind = made.asm["ptx"], {"bf16": "bf16", "fp16": "f16"}[dtype]
    assert f"wgmma.mma_async.sync.aligned.m64n{tile.m}k16.f32.{kind}.{kind}" in ptx
    assert "cp.async.bulk.tensor" in ptx and "setmaxnreg" in ptx
    assert "ldmatrix.sync.aligned.m8n8.x4" in ptx and "st.global.v4.b32" in ptx
    assert spilled_bytes(made.asm) <= MOST_SPILLED
    assert "griddepcontrol.wait" in ptx and "griddepcontrol.launch_dependents" in ptx
    # Scales are copied beside the words, and sums of parts are stored 16 bytes a thread.
    assert ("cp.async.mbarrier.arrive.noinc" in ptx) == (packing.group > 0)
    before, atom, _ = ptx.partition("atom.global")
    assert bool(atom) == (tile.parts > 1) and "st.global.v4.b32" in before
    assert (f"mul.rn.{kind}x2" in ptx) == tile.folded
    # A row's one scale multiplies the whole sum, in a step that is not fused with another.
    assert ("mul.rn.f32" in ptx) == (packing.group == 0)
    assert made.metadata.shared <= 227 << 10


@pytest.mark.parametrize(
    "index, group, out",
    [(-3, 128, "fp32"), (-2, 128, "fp32"), (-1, 128, "fp32"), (-1, 64, "bf16")],
)
def test_the_largest_tiles_fit_the_memory_with_zero_points(
    index, group, out, tmp_path, monkeypatch
):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    packing = replace(INT4, group=group)
    tile = as_it_fits([*_ROLES][index], packing, HOPPER)
    made = compiled(packing, tile, out=out)
    assert spilled_bytes(made.asm) <= MOST_SPILLED
    assert made.metadata.shared <= tile.shared_bytes(packing) <= 227 << 10


def test_scales_of_float16_are_copied_for_two_rows_at_once(tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    tile = RolesTile(m=64, taken=2, resident=2)
    wide, half = (compiled(INT4, tile, scales=kind).asm["ptx"] for kind in ("fp32", "fp16"))
    copies = [ptx.count("cp.async.ca.shared.global") for ptx in (wide, half)]
    assert copies[0] == 2 * copies[1] > 0


def test_warps_with_few_rows_of_x_do_not_wait_for_each_other(tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    few, more = (
        compiled(INT4, RolesTile(m=m, taken=4, x_stages=3), zero=None).asm["ptx"] for m in (16, 32)
    )
    # Those that say that words and x are needed no longer; the others say that scales are there.
    released = [ptx.count("cp.async.mbarrier.arrive.noinc") for ptx in (few, more)]
    assert released[0] == released[1] + 2
    assert few.count("bar.sync") < more.count("bar.sync")


FP4 = [
    Packing(bits=4, plane=64, group=32, scale="e8m0"),
    Packing(bits=4, plane=64, group=16, scale="e4m3"),
    Packing(bits=4, plane=32, group=32, scale="e8m0"),
    Packing(bits=4, plane=32, group=16, scale="e4m3"),
]


@pytest.mark.parametrize("packing", FP4, ids=str)
@pytest.mark.parametrize("tile", [RolesTile(m=64, taken=2, resident=2), [*_ROLES][-1]], ids=str)
def test_codes_of_fp4_become_floats_in_one_product(packing, tile, tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    tile = as_it_fits(tile, packing, HOPPER)
    made = compiled(packing, tile)
    ptx, groups = made.asm["ptx"], tile.groups
    assert f"wgmma.mma_async.sync.aligned.m64n{tile.m}k16.f32.bf16.bf16" in ptx
    assert spilled_bytes(made.asm) <= MOST_SPILLED
    assert made.metadata.shared <= tile.shared_bytes(packing) <= 227 << 10
    # Each of 64 rows has so many words of a block, of which a thread of 128 unpacks two at once.
    pairs = 4 * packing.plane // 4 * groups
    assert ptx.count("mul.rn.bf16x2") == pairs
    assert ptx.count("cp.async.cg.shared.global") > 0 and "e4m3" not in ptx
    assert "cp.async.mbarrier.arrive.noinc" in ptx and "mul.rn.f32" in ptx


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_codes_of_fp8_become_floats_without_a_conversion(dtype, tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    packing, tile = Packing(bits=8, plane=64, group=128), RolesTile(m=16, taken=2, resident=3)
    made = compiled(packing, tile, dtype=dtype, plain=PLAIN, zero=None)
    ptx, kind = made.asm["ptx"], {"bf16": "bf16", "fp16": "f16"}[dtype]
    assert f"wgmma.mma_async.sync.aligned.m64n16k16.f32.{kind}.{kind}" in ptx
    assert (
        f"mul.rn.{kind}x2" in ptx and "e4m3" not in ptx and spilled_bytes(made.asm) <= MOST_SPILLED
    )


@pytest.mark.parametrize("packing", [INT4, FP4[0], Packing(bits=8, plane=64, group=64)])
@pytest.mark.parametrize("plain", [{}, PLAIN])
def test_every_place_has_instructions_of_its_own(packing, plain):
    form = replace(packed_matmul.form_of(packing, RolesTile(m=64, folded=True)), **plain)
    texts = {packed_operand.instructions(p, form, gl.bfloat16) for p in range(2)}
    assert len(texts) == 2 and all("mul.rn.bf16x2 $0" in str(text) for text in texts)
