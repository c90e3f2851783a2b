"""The kernels of experts compile for NVIDIA and AMD GPUs, to their matrix units."""

from __future__ import annotations

import pytest
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from compiled_code import spilled_bytes
from quantdock_triton import expert_kernel, expert_pairs_kernel, gate_kernel, route_kernel
from quantdock_triton.launcher import FUSED
from quantdock_triton.packed_layout import Packing
from quantdock_triton.packed_matmul import groups_of
from quantdock_triton.small_float_matmul import SmallFloat

ALIGNED = [["tt.divisibility", 16]]
NVIDIA = [GPUTarget("cuda", 80, 32), GPUTarget("cuda", 90, 32)]
MI300 = GPUTarget("hip", "gfx942", 64)
_I32 = ("plan", "order", "count", "counts", "counters")
INTEGERS = {name: "*i32" for name in _I32} | {"ids": "*i64"}
SIZES = {"n", "k", "stride_x", "stride_out", "stride_words", "stride_scale", "size"}


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))


def compiled(kernel, target, kinds, constants, stages=3, warps=4):
    """Return the stages of a kernel; pointers and sizes are multiples of 16."""
    names, kinds = kernel.arg_names, INTEGERS | kinds
    constants = {n: value for n, value in constants.items() if n in names}
    signature = {n: "constexpr" if n in constants else kinds.get(n, "i32") for n in names}
    whole = [n for n in names if n in SIZES or (n in kinds and "<" not in kinds[n])]
    aligned = [n for n in whole if n not in constants]
    attributes = {(names.index(n),): ALIGNED for n in aligned}
    values = {(names.index(n),): value for n, value in constants.items()}
    source = ASTSource(kernel, signature, values, attributes)
    options = FUSED | {"num_warps": warps, "num_stages": stages}
    return triton.compile(source, target=target, options=options).asm


def scaled(target, x, weight, **more):
    x, weight = (kind if "<" in kind else f"*{kind}" for kind in (x, weight))
    kinds = {"x": x, "weight": weight, "out": "*bf16", "x_scale": "*fp32"}
    constants = {
        "A_STEPS": 1, "B_STEPS": 1, "B_ROWS": 128, "WIDEN": "", "UNIT": 1.0, "INTEGER": False,
        "HAS_BIAS": False, "EVEN_K": True, "BLOCK_M": 16, "BLOCK_N": 64, "BLOCK_K": 128,
        "SWAP": True, "TMA": False, "DIRECT": False, "GATHERS": True, "SCATTERS": False,
        "EARLY": False, "bias": None, "x_scale_row": 1, "scale_group": 1,
    }  # fmt: skip
    kinds |= {"weight_scale": "*fp32"}
    return compiled(expert_kernel.scaled_experts, target, kinds, constants | more)


@pytest.mark.parametrize("gathers", [True, False])
def test_fp8_on_hopper(gathers):
    ptx = scaled(NVIDIA[1], "fp8e4nv", "fp8e4nv", GATHERS=gathers, SCATTERS=not gathers)["ptx"]
    assert "wgmma.mma_async.sync.aligned.m64n16k32.f32.e4m3.e4m3" in ptx
    assert "ld.local" not in ptx and "cp.async" in ptx
    tall = {"BLOCK_M": 128, "BLOCK_N": 128, "SWAP": False}
    ptx = scaled(NVIDIA[1], "fp8e4nv", "fp8e4nv", GATHERS=gathers, SCATTERS=not gathers, **tall)[
        "ptx"
    ]
    assert "wgmma.mma_async.sync.aligned.m64n128k32" in ptx


@pytest.mark.parametrize("steps", [16, 64])
@pytest.mark.parametrize("is_first", [True, False])
def test_pairs_that_quantize_their_rows(steps, is_first):
    kinds = {"x": "*bf16", "weight": "*fp8e4nv", "out": "*bf16", "weight_scale": "*fp32",
             "weights": "*fp32", "sums": "*bf16"}  # fmt: skip
    constants = {
        "bias": None, "A_STEPS": 1, "B_STEPS": 1, "B_ROWS": 128, "WIDEN": "", "UNIT": 1.0,
        "INTEGER": False, "HAS_BIAS": False, "EVEN_K": True, "STEPS": steps, "BLOCK_N": 64,
        "BLOCK_K": 128, "SPEC": (-448.0, 448.0, True, 448.0, -1),
        "EARLY": True, "scale_group": 1, "GATHERS": is_first, "NAME": "silu, rounded",
        "ORDER": "gate_up" if is_first else "", "TOP_K": 0 if is_first else 8, "PAIRS": 8,
    }  # fmt: skip
    if is_first:
        constants |= {"weights": None, "sums": None, "counters": None}
    made = compiled(expert_pairs_kernel.scaled_pairs, NVIDIA[1], kinds, constants, stages=4)
    assert f"wgmma.mma_async.sync.aligned.m64n{steps}k32.f32.e4m3.e4m3" in made["ptx"]
    assert "cp.async" in made["ptx"] and spilled_bytes(made) == 0


def test_sorted_codes_through_the_copy_engine():
    tall = {"BLOCK_M": 64, "BLOCK_N": 128, "SWAP": False, "TMA": True, "GATHERS": False}
    code, more = "fp8e4nv", {"SCATTERS": True, "EARLY": True}
    names = [f"tensordesc<{code}[{size}, 128]>" for size in (64, 128)]
    ptx = scaled(NVIDIA[1], *names, **tall, **more)["ptx"]
    assert "cp.async.bulk.tensor.2d" in ptx and "wgmma.mma_async.sync.aligned.m64n128k32" in ptx


@pytest.mark.parametrize("target", NVIDIA, ids=lambda t: str(t.arch))
def test_weights_alone(target):
    alone = {"A_STEPS": 0, "WIDEN": "e4m3", "UNIT": 256.0, "BLOCK_K": 64, "x_scale": None}
    ptx = scaled(target, "bf16", "u8", **alone)["ptx"]
    product = "wgmma.mma_async" if target.arch == 90 else "mma.sync.aligned.m16n8k16"
    assert product in ptx and "ld.local" not in ptx


def test_fp8_on_mi300():
    assert "v_mfma_f32_16x16x32_fp8" in scaled(MI300, "fp8e4b8", "fp8e4b8")["amdgcn"]


@pytest.mark.parametrize("target", [*NVIDIA, MI300], ids=lambda t: str(t.arch))
def test_small_floats(target):
    names = ("BITS", "PLACES", "FRACTION", "UNIT", "RUN", "E8M0")
    kind = SmallFloat(element="fp4_e2m1", group=32, scale="e8m0")
    constants = dict(zip(names, kind.constants, strict=True)) | {
        "second": None, "PTX": target.backend == "cuda", "BLOCK_M": 16, "BLOCK_N": 64,
        "DIRECT": False, "GATHERS": True, "SCATTERS": False, "EARLY": False,
    }  # fmt: skip
    kinds = {"x": "*bf16", "words": "*i16", "scale": "*u8", "bias": "*bf16", "out": "*bf16"}
    made = compiled(expert_kernel.small_float_experts, target, kinds, constants)
    code = made["ptx"] if target.backend == "cuda" else made["amdgcn"]
    assert {80: "mma.sync", 90: "wgmma.mma_async", "gfx942": "v_mfma_f32"}[target.arch] in code


@pytest.mark.parametrize("target", [*NVIDIA, MI300], ids=lambda t: str(t.arch))
def test_packed_integers(target):
    packing = Packing(bits=4, plane=64, group=128)
    per_group, run = groups_of(packing)
    constants = {
        "zero": None, "bias": None, "BITS": 4, "PLANE": 64, "TAKEN": 64, "PER_GROUP": per_group,
        "RUN": run, "MIDDLE": 8, "FOLDED": False, "EVEN_K": True, "PTX": target.backend == "cuda",
        "BLOCK_M": 16, "BLOCK_N": 64, "DIRECT": True, "GATHERS": False, "SCATTERS": True,
        "EARLY": target.arch == 90,
    }  # fmt: skip
    kinds = {"x": "*bf16", "words": "*i16", "scale": "*fp32", "out": "*bf16"}
    made = compiled(expert_kernel.packed_experts, target, kinds, constants)
    code = made["ptx"] if target.backend == "cuda" else made["amdgcn"]
    assert {80: "mma.sync", 90: "wgmma.mma_async", "gfx942": "v_mfma_f32"}[target.arch] in code


@pytest.mark.parametrize("target", [*NVIDIA, MI300], ids=lambda t: str(t.arch))
def test_routing_gates_and_sums(target):
    early = target.arch == 90
    routing = {"TILE_M": 16, "BINS": 256, "CHUNK": 512, "EARLY": early}
    assert compiled(route_kernel.route, target, {}, routing)
    assert compiled(route_kernel.count_pairs, target, {}, routing)
    placed = compiled(route_kernel.place_pairs, target, {}, routing, warps=8)
    assert target.backend == "hip" or "ld.local" not in placed["ptx"]
    kinds = {"parts": "*bf16", "weights": "*fp32", "out": "*bf16"}
    assert compiled(
        route_kernel.sum_of_pairs, target, kinds, {"TOP_K": 8, "WIDTH": 1024, "EARLY": early}
    )
    for order in ("gate_up", "interleaved", "up"):
        constants = {
            "NAME": "clamped_swiglu",
            "ORDER": order,
            "ROWS": 4,
            "WIDTH": 1024,
            "EARLY": early,
        }
        kinds = {"hidden": "*bf16", "out": "*bf16"}
        made = compiled(gate_kernel.gate_pairs, target, kinds, constants)
        if target.backend == "cuda":
            assert "ld.global.v4" in made["ptx"] and "st.global.v" in made["ptx"]
