"""The kernels of fp4 and fp6 codes compile for NVIDIA and AMD GPUs, to their matrix units."""

from __future__ import annotations

import pytest
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from quantdock_triton import small_float_kernel
from quantdock_triton.launcher import FUSED
from quantdock_triton.small_float_matmul import SmallFloat

ALIGNED = [["tt.divisibility", 16]]
POINTERS = {"x": "*bf16", "words": "*i16", "scale": "*u8", "second": "*fp32", "bias": "*bf16",
            "out": "*bf16", "partial": "*fp32", "counters": "*i32"}  # fmt: skip
NAMES = ("BITS", "PLACES", "FRACTION", "UNIT", "RUN", "E8M0")
NVFP4 = SmallFloat(element="fp4_e2m1", group=16, scale="e4m3")
MXFP4 = SmallFloat(element="fp4_e2m1", group=32, scale="e8m0")
MXFP6 = SmallFloat(element="fp6_e3m2", group=32, scale="e8m0")


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))


def compiled(name, target, kind, constants, dtype="bf16"):
    """Return the stages of a kernel; pointers, K and strides are multiples of 16."""
    kernel = getattr(small_float_kernel, name)
    constants = dict(zip(NAMES, kind.constants, strict=True)) | constants
    kinds = POINTERS | {"x": f"*{dtype}", "out": f"*{dtype}"}
    names = kernel.arg_names
    signature = {n: "constexpr" if n in constants else kinds.get(n, "i32") for n in names}
    whole = ("k", "stride_x", "stride_words", "stride_scale")
    aligned = [n for n in names if n in whole or (n in kinds and n not in constants)]
    attributes = {(names.index(n),): ALIGNED for n in aligned}
    values = {(names.index(n),): value for n, value in constants.items()}
    source = ASTSource(kernel, signature, values, attributes)
    options = FUSED | {"num_warps": 4, "num_stages": 3}
    return triton.compile(source, target=target, options=options).asm


TILE = {"PTX": True, "BLOCK_M": 16, "BLOCK_N": 64, "SPLIT": True, "bias": None}


@pytest.mark.parametrize(
    "arch, kind, dtype, unit",
    [
        (80, NVFP4, "bf16", "bf16.bf16"),
        (80, MXFP4, "fp16", "tf32.tf32"),
        (90, NVFP4, "fp16", "tf32.tf32"),
        (90, MXFP4, "bf16", "bf16.bf16"),
    ],
)
def test_products_on_tensor_cores(arch, kind, dtype, unit):
    second = {} if kind is NVFP4 else {"second": None}
    target = GPUTarget("cuda", arch, 32)
    ptx = compiled("small_float_matmul", target, kind, TILE | second, dtype)["ptx"]
    product = "wgmma.mma_async.sync.aligned.m64n16" if arch == 90 else "mma.sync.aligned.m16n8"
    assert product in ptx and unit in ptx and "ld.local" not in ptx


@pytest.mark.parametrize("kind", [MXFP4, MXFP6])
def test_products_on_mi300(kind):
    target = GPUTarget("hip", "gfx942", 64)
    code = compiled("small_float_matmul", target, kind, TILE | {"second": None, "PTX": False})[
        "amdgcn"
    ]
    assert "v_mfma_f32" in code and "bf16" in code


@pytest.mark.parametrize("arch", [80, 90])
def test_rows_become_floats(arch):
    ptx = compiled("widen_rows", GPUTarget("cuda", arch, 32), NVFP4, {"BLOCK_N": 16})["ptx"]
    assert "st.global.v4" in ptx and "ld.local" not in ptx
