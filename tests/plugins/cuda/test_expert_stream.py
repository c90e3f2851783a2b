"""Experts of few rows, whose words are streamed: the kernel compiles; who takes it, in what."""

from __future__ import annotations

import pytest

from compiled_code import MOST_SPILLED, compiled_gluon, spilled_bytes
from quantdock_cuda.device import Device
from quantdock_cuda.expert_stream_kernel import stream_experts
from quantdock_cuda.expert_tiles import (
    STREAM,
    may_stream,
    packed_tile,
    roles_tile,
    streaming_tile,
)
from quantdock_cuda.packed_stream import form_of
from quantdock_triton.packed_layout import Packing

HOPPER = Device(
    arch="sm_90",
    features=frozenset({"tma", "wgmma", "dependent_launch"}),
    num_sms=132,
    shared_bytes=227 << 10,
)
INT4 = Packing(bits=4, plane=64, group=128)
MXFP4 = Packing(bits=4, plane=64, group=32, scale="e8m0")
POINTERS = {"words": "*i16", "x": "*bf16", "scale": "*fp32", "zero": "*fp32", "stored": "*i32",
            "bias": "*bf16", "out": "*bf16", "plan": "*i32", "order": "*i32"}  # fmt: skip
NUMBERS = ("num_tiles", "num_experts", "top_k", "n", "k", "steps", "groups", "stride_x")


def compiled(packing, *, direct, is_first, **absent):
    """Return a compiled kernel; ``absent`` are pointers that are None."""
    tile = streaming_tile(packing, HOPPER, 8 * 5760, 2880, direct=direct)
    absent["zero" if packing.is_float else "stored"] = None
    if direct:
        absent["order"] = None
    kinds = POINTERS | dict.fromkeys(NUMBERS, "i32") | ({"plan": "*i64"} if direct else {})
    kinds = {name: kind for name, kind in kinds.items() if name not in absent}
    constants = {"FORM": form_of(packing, tile, 2880, 1, True), "DIRECT": direct,
                 "IS_FIRST": is_first} | absent  # fmt: skip
    aligned = [name for name in kinds if name in POINTERS or name == "stride_x"]
    options = {"num_warps": tile.warps, "maxnreg": tile.registers, "launch_pdl": True}
    return compiled_gluon(stream_experts, kinds, constants, aligned=aligned, **options)


@pytest.mark.parametrize("packing", [INT4, MXFP4], ids=str)
@pytest.mark.parametrize("direct", [False, True])
@pytest.mark.parametrize("is_first", [False, True])
def test_compiles(packing, direct, is_first, tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    made = compiled(packing, direct=direct, is_first=is_first, bias=None)
    before, wait, _ = made.asm["ptx"].partition("griddepcontrol.wait")
    # Words of w2 are asked for while the kernel before ends; it has waited for the plan.
    assert wait and ("evict_first" in before) is not is_first
    assert spilled_bytes(made.asm) <= MOST_SPILLED


def test_zero_points_and_biases_of_each_expert(tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    made = compiled(INT4, direct=False, is_first=False)
    assert spilled_bytes(made.asm) <= MOST_SPILLED


def test_experts_of_few_rows_stream_where_columns_come_in_whole_planes():
    assert may_stream(MXFP4, HOPPER, 2880) and not may_stream(MXFP4, HOPPER, 2848)
    ampere = Device(arch="sm_80", features=frozenset(), num_sms=108, shared_bytes=166912)
    assert not may_stream(MXFP4, ampere, 2880)
    for rows in (0, 1, 8, 64):
        is_first = rows > 1
        for packing in (INT4, MXFP4):
            tile = packed_tile(packing, HOPPER, rows, is_first=is_first, streams=True)
            assert (tile == STREAM) is (rows == 0 or (rows == 1 and packing is MXFP4))
            other = packed_tile(packing, HOPPER, rows, is_first=is_first)
            has_roles = rows > 0 or packing is MXFP4
            assert (other == roles_tile(packing, HOPPER, rows)) is has_roles


@pytest.mark.parametrize("packing", [INT4, MXFP4], ids=str)
def test_programs_neither_share_sums_nor_ask_ahead(packing):
    for n in (768, 5760, 128 * 1536):
        for direct in (True, False):
            tile = streaming_tile(packing, HOPPER, n, 2048, direct=direct)
            assert (tile.parts, tile.ahead, tile.early) == (1, 0, True)
            assert tile.x_rows == (1 if direct else 8) and tile.tokens == STREAM.tokens
