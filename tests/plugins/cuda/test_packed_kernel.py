"""The kernel of packed codes whose warps have roles compiles for sm_90, to what it should."""

from __future__ import annotations

from dataclasses import replace

import pytest
import triton
from triton.backends.compiler import GPUTarget
from triton.experimental.gluon._runtime import GluonASTSource
from triton.experimental.gluon.language import NVMMASharedLayout

from quantdock_cuda import packed_kernel, packed_matmul, packed_operand
from quantdock_cuda.packed_matmul import RolesTile
from quantdock_triton.launcher import FUSED
from quantdock_triton.packed_layout import Packing

ALIGNED = [["tt.divisibility", 16]]
POINTERS = {"scale": "*fp32", "zero": "*fp32", "bias": "*bf16", "out": "*bf16", "partial": "*fp32",
            "counters": "*i32"}  # fmt: skip
NUMBERS = ("m", "units", "first_row", "n", "steps", "groups", "stride_scale", "stride_out", "parts")
INT4 = Packing(bits=4, plane=64, group=128)


def compiled(packing, tile, *, dtype="bf16", **absent):
    """Return a compiled kernel; ``absent`` are pointers that are None."""
    kernel, plane = packed_kernel.packed_matmul, packing.plane
    layout = NVMMASharedLayout(swizzle_byte_width=2 * plane, element_bitwidth=16, rank=2)
    kinds = {name: kind for name, kind in POINTERS.items() if name not in absent}
    kinds |= dict.fromkeys(NUMBERS, "i32")
    kinds["words"] = f"tensordesc<i16[64, {plane}],{layout!r}>"
    kinds["x"] = f"tensordesc<{dtype}[{tile.m}, {tile.taken * plane}],{layout!r}>"
    registers, others = packed_matmul.registers_of(tile)
    form = replace(packed_matmul.form_of(packing, tile), split=tile.parts > 1)
    constants = {"FORM": form, "REGISTERS": others} | absent
    names = kernel.arg_names
    aligned = [*(name for name in POINTERS if name in kinds), "first_row", "n", "stride_out"]
    source = GluonASTSource(
        kernel,
        {name: kinds.get(name, "constexpr") for name in names},
        {(names.index(name),): value for name, value in constants.items()},
        {(names.index(name),): ALIGNED for name in aligned},
    )
    options = FUSED | {"num_warps": 4, "maxnreg": registers}
    return triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)


@pytest.mark.parametrize(
    "packing, tile, dtype, absent",
    [
        (INT4, RolesTile(m=128, groups=2, x_stages=7, folded=True), "bf16", {"zero": None}),
        (INT4, RolesTile(m=64, groups=2, x_stages=15, parts=2), "bf16", {"bias": None}),
        (Packing(bits=8, plane=32, group=32), RolesTile(m=64, folded=True), "fp16", {}),
    ],
)
def test_compiles(packing, tile, dtype, absent, tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    made = compiled(packing, tile, dtype=dtype, **absent)
    ptx, kind = made.asm["ptx"], {"bf16": "bf16", "fp16": "f16"}[dtype]
    assert f"wgmma.mma_async.sync.aligned.m64n{tile.m}k16.f32.{kind}.{kind}" in ptx
    assert "cp.async.bulk.tensor" in ptx and "setmaxnreg" in ptx
    assert "ldmatrix.sync.aligned.m8n8.x4" in ptx and "st.global.v4.b32" in ptx
    assert "ld.local" not in ptx
    assert (f"mul.rn.{kind}x2" in ptx) == tile.folded
    assert made.metadata.shared <= 227 << 10


@pytest.mark.parametrize("bits, places", [(4, 4), (8, 2)])
def test_every_place_has_instructions_of_its_own(bits, places):
    from triton.experimental.gluon import language as gl

    texts = {packed_operand.instructions(p, bits, True, gl.bfloat16) for p in range(places)}
    assert len(texts) == places
    assert all("bf16x2" in str(text) for text in texts)
