"""The kernels of packed codes compile for sm_80 and sm_90, to the instructions that they should."""

from __future__ import annotations

from math import gcd

import pytest
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from quantdock_triton import packed_matmul_kernel
from quantdock_triton.launcher import FUSED

ALIGNED = [["tt.divisibility", 16]]
POINTERS = {"x": "*bf16", "words": "*i16", "scale": "*fp32", "zero": "*fp32", "bias": "*bf16",
            "out": "*bf16", "partial": "*fp32", "counters": "*i32"}  # fmt: skip


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))


def compiled(name, arch, constants, *, dtype="bf16", warps=4, stages=3):
    """Return the stages of a kernel; pointers, K and the rows of x are multiples of 16."""
    kernel = getattr(packed_matmul_kernel, name)
    kinds = POINTERS | {"x": f"*{dtype}", "out": f"*{dtype}"}
    names = kernel.arg_names
    signature = {n: "constexpr" if n in constants else kinds.get(n, "i32") for n in names}
    aligned = [n for n in names if n in ("k", "stride_x") or (n in kinds and n not in constants)]
    attributes = {(names.index(n),): ALIGNED for n in aligned}
    values = {(names.index(n),): value for n, value in constants.items()}
    source = ASTSource(kernel, signature, values, attributes)
    options = FUSED | {"num_warps": warps, "num_stages": stages}
    return triton.compile(source, target=GPUTarget("cuda", arch, 32), options=options).asm


def product(arch, group, m=16, n=64, *, bits=4, zero=True, dtype="bf16", warps=4, **more):
    plane = 64 if group % 64 == 0 else 32
    per_group, planes = group // plane, 16 // bits
    constants = {"BITS": bits, "PLANE": plane, "TAKEN": 32, "PER_GROUP": per_group,
                 "RUN": gcd(per_group, planes), "MIDDLE": 1 << bits - 1, "FOLDED": False,
                 "EVEN_K": True, "PTX": True, "BLOCK_M": m, "BLOCK_N": n, "SPLIT": True,
                 "bias": None} | ({} if zero else {"zero": None}) | more  # fmt: skip
    return compiled("packed_matmul", arch, constants, dtype=dtype, warps=warps)


@pytest.mark.parametrize(
    "group, more, dtype",
    [
        (128, {}, "bf16"),
        (128, {}, "fp16"),
        (32, {"zero": False}, "fp16"),
        (0, {"EVEN_K": False}, "bf16"),
    ],
)
def test_unpacked_codes_are_operands_in_registers(group, more, dtype):
    stages = product(90, group, dtype=dtype, **more)
    ptx = stages["ptx"]
    kind = {"bf16": "bf16", "fp16": "f16"}[dtype]
    assert f"wgmma.mma_async.sync.aligned.m64n16k16.f32.{kind}.{kind}" in ptx
    assert "lop3.b32" in ptx and f"fma.rn.{kind}x2" in ptx
    products = [line for line in stages["ttgir"].splitlines() if "warp_group_dot %" in line]
    assert products and all("dot_op<{opIdx = 0" in line for line in products)


@pytest.mark.parametrize(
    "bits, group, dtype", [(4, 128, "bf16"), (4, 32, "fp16"), (8, 0, "fp16"), (8, 64, "bf16")]
)
def test_products_on_sm_80(bits, group, dtype):
    kind = {"bf16": "bf16", "fp16": "f16"}[dtype]
    ptx = product(80, group, bits=bits, dtype=dtype)["ptx"]
    assert f"mma.sync.aligned.m16n8k16.row.col.f32.{kind}.{kind}.f32" in ptx
    assert "cp.async.cg" in ptx


@pytest.mark.parametrize("arch", [80, 90])
def test_many_rows_and_folded_scales(arch):
    ptx = product(arch, 128, 128, 128, warps=8, FOLDED=True)["ptx"]
    assert "mma" in ptx and "ld.local" not in ptx


@pytest.mark.parametrize("arch, bits", [(80, 4), (90, 8)])
def test_rows_become_floats_in_whole_vectors(arch, bits):
    constants = {"BITS": bits, "PLANE": 64, "PER_GROUP": 2, "MIDDLE": 8, "BLOCK_N": 64}
    ptx = compiled("unpack_rows", arch, constants, warps=8)["ptx"]
    assert "st.global.v4.b32" in ptx and "ld.global.v4.b32" in ptx
