"""The kernel that streams packed codes compiles, to what it should."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from compiled_code import MOST_SPILLED, compiled_gluon, spilled_bytes
from quantdock_cuda import packed_stream_kernel
from quantdock_cuda.packed_stream import StreamTile, form_of
from quantdock_triton.packed_layout import Packing

ALIGNED = [["tt.divisibility", 16]]
WORDS = r"ld\.global\.L1::evict_first\.\S*v4\.b32"  # how 16 bytes of words are read
POINTERS = {"words": "*i16", "x": "*bf16", "scale": "*fp32", "zero": "*fp32", "stored": "*i32",
            "bias": "*bf16", "out": "*bf16", "partial": "*fp32", "counters": "*i32"}  # fmt: skip
NUMBERS = ("m", "first_row", "n", "k", "steps", "groups", "stride_x", "stride_scale",
           "stride_out", "parts")  # fmt: skip
INT4 = Packing(bits=4, plane=64, group=128)
EARLY = StreamTile(
    rows=16, tokens=8, x_rows=1, keeps_x=True, warps=8, registers=64, early=True, ahead=1
)
ONE = StreamTile(rows=16, tokens=8, x_rows=1, keeps_x=True, warps=4, registers=80)
SOME = StreamTile(rows=32, tokens=8, x_rows=8, warps=4, registers=128, parts=2)
MANY = replace(ONE, keeps_x=False, registers=64)  # programs, of one row of x
SHORT = replace(SOME, rows=16, registers=72, parts=1)
MXFP4 = Packing(bits=4, plane=64, group=32, scale="e8m0")
NVFP4 = Packing(bits=4, plane=64, group=16, scale="e4m3")


def compiled(
    packing, tile, *, k=4096, dtype="bf16", arch=90, whole_rows=True, scales="fp32", **absent
):
    """Return the stages of a compiled kernel; ``absent`` are pointers that are None."""
    kernel = packed_stream_kernel.packed_stream
    if tile.parts == 1:
        absent |= {"partial": None, "counters": None}
    if not packing.is_float:
        absent |= {"stored": None}
    kinds = POINTERS | {"x": f"*{dtype}"} | dict.fromkeys(NUMBERS, "i32")
    kinds |= dict.fromkeys(("scale", "zero"), f"*{scales}")
    kinds = {name: kind for name, kind in kinds.items() if name not in absent}
    constants = {"FORM": form_of(packing, tile, k, tile.parts, whole_rows)} | absent
    aligned = [name for name in kinds if name in POINTERS or name == "stride_x"]
    options = {"num_warps": tile.warps, "maxnreg": tile.registers}
    if tile.early:
        options["launch_pdl"] = True
    return compiled_gluon(kernel, kinds, constants, aligned=aligned, arch=arch, **options)


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))


@pytest.mark.parametrize("arch", [80, 90])
@pytest.mark.parametrize(
    "packing, tile, dtype, absent",
    [
        (INT4, ONE, "bf16", {"zero": None, "bias": None}),
        (INT4, SOME, "fp16", {"bias": None}),
        (Packing(bits=4, plane=32, group=32), ONE, "fp16", {"zero": None}),
        (Packing(bits=8, plane=64, group=0), SOME, "bf16", {"zero": None, "bias": None}),
    ],
)
def test_words_are_operands_as_they_are_read(packing, tile, dtype, absent, arch):
    made = compiled(packing, tile, dtype=dtype, arch=arch, **absent)
    ptx, kind = made.asm["ptx"], {"bf16": "bf16", "fp16": "f16"}[dtype]
    assert f"mma.sync.aligned.m16n8k16.row.col.f32.{kind}.{kind}.f32" in ptx
    assert len(re.findall(WORDS, ptx)) >= 4
    assert ("ld.shared.v4.b32" if tile.keeps_x else "ld.global.v4.b32") in ptx  # x
    assert ("cp.async.cg" in ptx) == tile.keeps_x
    assert spilled_bytes(made.asm) == 0 and "ldmatrix" not in ptx


def test_words_leave_the_near_cache_first():
    ptx = compiled(INT4, SOME, bias=None).asm["ptx"]
    assert len(re.findall(WORDS, ptx)) == 16  # 128 bytes a turn, the first and those that follow
    assert ptx.count("ld.global.v4.b32") == 8  # x, which stays


@pytest.mark.parametrize("packing", [MXFP4, NVFP4])
@pytest.mark.parametrize("tile, pairs", [(ONE, 64), (SOME, 128), (MANY, 64), (SHORT, 64)])
def test_floats_have_scales_that_are_read_with_their_words(packing, tile, pairs):
    """A product makes each pair of codes numbers; each thread reads bytes of its words only."""
    made = compiled(packing, tile, zero=None, bias=None)
    ptx, rows = made.asm["ptx"], tile.rows // 8  # of a thread
    assert "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32" in ptx
    assert ptx.count("mul.rn.bf16x2") >= pairs
    assert ptx.count("prmt.b32") == 2 * 4 * rows  # two runs of a thread's columns, at four places
    first = ptx.partition("mma.sync")[0]
    assert first.count("ld.global.b32") == 2 * rows
    assert len(re.findall(WORDS, first)) == 2 * rows
    assert spilled_bytes(made.asm) <= MOST_SPILLED and "ldmatrix" not in ptx


@pytest.mark.parametrize("tile, count", [(MANY, 4), (SOME, 8)])
@pytest.mark.parametrize("absent", [{"zero": None, "bias": None}, {"bias": None}])
def test_scales_of_float16_are_not_touched_in_the_turn_that_reads_them(tile, count, absent):
    """Two in one register would be waited for where they are put there, at the end of a turn."""
    made = compiled(INT4, tile, scales="fp16", **absent)
    ptx, read = made.asm["ptx"], count * (2 - ("zero" in absent))
    assert ptx.count("cvt.u32.u16") == 2 * read  # of the first turn, and of those that follow
    assert not re.search(r"phi (<2 x )?half", made.asm["llir"])
    assert spilled_bytes(made.asm) <= MOST_SPILLED


def test_first_words_are_asked_for_while_the_kernel_before_ends():
    ptx = compiled(INT4, EARLY, zero=None, bias=None).asm["ptx"]
    before, wait, after = ptx.partition("griddepcontrol.wait")
    assert wait and len(re.findall(WORDS, before)) == 4
    assert "prefetch.global.L2" in before and "prefetch" not in after
    assert "cp.async.cg" in after and "cp.async.cg" not in before  # x
    assert "griddepcontrol.launch_dependents" in after
    assert "griddepcontrol" not in compiled(INT4, ONE, arch=80, zero=None, bias=None).asm["ptx"]
