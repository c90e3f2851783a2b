"""The kernels compile to machine code for sm_90 and sm_80 on a machine without a GPU."""

from __future__ import annotations

import pytest
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from quantdock_triton import matmul_kernel, normalize_kernel, quantize_kernel, widen_kernel
from quantdock_triton.launcher import FUSED

ALIGNED = [["tt.divisibility", 16]]
SIZES = ("m", "n", "k", "groups", "parts", "num_parts")
STRIDES = ("stride_a", "stride_b", "stride_out", "stride_x", "stride_codes", "a_scale_row",
           "a_scale_group", "b_scale_row", "b_scale_group", "scale_row", "scale_group",
           "stride_residual", "stride_total")  # fmt: skip
BLOCK = {"A_STEPS": 1, "B_STEPS": 1, "B_ROWS": 128}


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))


def compiled(kernel, arch, pointers, constants, **options):
    """Return the compiled kernel; pointers and sizes are multiples of 16."""
    kinds = {name: "i32" for name in (*SIZES, *STRIDES)} | pointers
    names = kernel.arg_names
    signature = {name: "constexpr" if name in constants else kinds[name] for name in names}
    aligned = [n for n in names if n in kinds and (n in pointers or n.startswith("stride"))]
    attributes = {(names.index(n),): ALIGNED for n in aligned if n not in constants}
    values = {(names.index(name),): value for name, value in constants.items()}
    source = ASTSource(kernel, signature, values, attributes)
    return triton.compile(source, target=GPUTarget("cuda", arch, 32), options=FUSED | options)


def product(arch, m, n, k, *, codes="fp8e4nv", x=None, warps=4, stages=4, **more):
    constants = {"A_STEPS": 0, "B_STEPS": 0, "B_ROWS": 1, "WIDEN": "", "UNIT": 1.0,
                 "INTEGER": False, "HAS_BIAS": False, "bias": None, "EVEN_K": True, "BLOCK_M": m,
                 "BLOCK_N": n, "BLOCK_K": k, "GROUP_M": 8, "SPLIT": False, "SWAP": False,
                 "TMA": False} | more  # fmt: skip
    pointers = {"a": f"*{x or codes}", "b": f"*{codes}", "out": "*bf16", "a_scale": "*fp32",
                "b_scale": "*fp32", "partial": "*fp32", "counters": "*i32"}  # fmt: skip
    if constants["TMA"]:
        pointers["a"], pointers["b"] = (f"tensordesc<{codes}[{rows},{k}]>" for rows in (m, n))
    made = compiled(
        matmul_kernel.scaled_matmul, arch, pointers, constants, num_warps=warps, num_stages=stages
    )
    return made.asm["ptx"]


@pytest.mark.parametrize(
    "sizes, more",
    [
        ((16, 64, 256), {"SWAP": True}),
        ((16, 64, 128), {"SWAP": True, "SPLIT": True, **BLOCK}),
        ((128, 128, 128), {"warps": 8, **BLOCK}),
        ((64, 64, 128), {"EVEN_K": False}),
        ((16, 64, 32), {"SWAP": True, "A_STEPS": 1, "B_STEPS": 1}),
        ((64, 64, 128), {"codes": "i8", "INTEGER": True}),
        ((64, 64, 128), {"codes": "i8", "INTEGER": True, **BLOCK}),
    ],
)
def test_products_use_hoppers_tensor_cores(sizes, more):
    assert "wgmma.mma_async" in product(90, *sizes, **more)


def test_products_use_hoppers_copy_engine():
    for more in (BLOCK, {"warps": 8}):
        assert "cp.async.bulk.tensor" in product(90, 128, 128, 128, TMA=True, **more)


@pytest.mark.parametrize(
    "arch, dtype, kinds",
    [
        (80, "bf16", ("e4m3", "int8")),
        (80, "fp16", ("e5m2",)),
        (80, "fp32", ("e4m3",)),
        (90, "bf16", ("e4m3", "e5m2")),
        (90, "fp16", ("e4m3", "int8")),
        (90, "fp32", ("int8",)),
    ],
)
def test_weights_alone_need_no_fp8_unit(arch, dtype, kinds):
    for widen in kinds:
        ptx = product(arch, 16, 64, 64, codes="u8", x=dtype, WIDEN=widen, SWAP=True)
        assert "mma" in ptx and "e4m3" not in ptx and "e5m2" not in ptx


def test_int8_on_sm_80():
    for more in ({}, BLOCK):
        ptx = product(80, 64, 64, 128, codes="i8", INTEGER=True, **more)
        assert "mma.sync.aligned.m16n8k32.row.col.satfinite.s32.s8.s8.s32" in ptx


def test_fp8_on_sm_89():
    assert "e4m3.e4m3" in product(89, 64, 64, 128, stages=3, **BLOCK)


POINTERS = {"scales": "*fp32", "parts": "*fp32", "input_scale": "*fp32", "folded_scale": "*fp32",
            "slots": "*i32", "eps": "fp32"}  # fmt: skip
SCALE = {"TOP": 127.0, "CARRY": -1}


@pytest.mark.parametrize(
    "arch, codes, x, silu",
    [
        (90, "fp8e4nv", "bf16", False),
        (90, "fp8e4nv", "fp16", True),
        (90, "fp8e5", "fp32", False),
        (90, "i8", "bf16", True),
        (80, "i8", "bf16", False),
        (80, "i8", "fp16", True),
    ],
)
def test_quantization(arch, codes, x, silu):
    pointers = POINTERS | {"x": f"*{x}", "codes": f"*{codes}"}
    ends = {"LOWEST": -127.0, "LARGEST": 127.0, "PTX": True, "SILU": silu}
    tile = {"SIZE": 128, "ROWS": 2, "GROUPS": 8, "WIDTH": 128}
    early = {"EARLY": arch >= 90}
    kernels = {
        "quantize_tiles": ends | SCALE | tile | early,
        "quantize_rows": early | {"WIDTH": 2048, "PIECES": 3} | ends | SCALE,
        "quantize_long_row": {"WIDTH": 4096} | ends | SCALE,
        "quantize_static": {"NUM": 3, "NUM_WIDTH": 4, "ROWS": 4, "WIDTH": 1024} | ends | early,
        "largest_of_parts": early | {"ROWS": 4, "WIDTH": 1024, "SILU": silu, "PTX": True},
        "quantize_together": early | {"ROWS": 4, "WIDTH": 1024, "SLOTS": 256} | ends | SCALE,
        "quantize_whole": early | {"NUM_WIDTH": 512, "ROWS": 4, "WIDTH": 1024} | ends | SCALE,
    }
    for name, constants in kernels.items():
        made = compiled(getattr(quantize_kernel, name), arch, pointers, constants, num_warps=8)
        ptx = made.asm["ptx"]
        assert "st.global" in ptx and "ld.local" not in ptx
        assert ("griddepcontrol" in ptx) is constants.get("EARLY", False)
        if "codes" in getattr(quantize_kernel, name).arg_names:
            convert = {"fp8e4nv": "cvt.rn.satfinite.e4m3x2.f32", "fp8e5": "e5m2x2.f32",
                       "i8": "cvt.pack.sat.s8.s32.b32"}  # fmt: skip
            assert convert[codes] in ptx


@pytest.mark.parametrize(
    "codes, size, num, x",
    [("fp8e4nv", 0, 0, "bf16"), ("i8", 0, 2, "fp16"), ("fp8e4nv", 128, 0, "bf16")],
)
def test_norms(codes, size, num, x):
    pointers = POINTERS | {"codes": f"*{codes}"}
    pointers |= dict.fromkeys(("x", "residual", "total", "weight"), f"*{x}")
    constants = {"WIDTH": 1024, "PIECES": 3, "SIZE": size, "LANES": 0, "NUM": num, "NUM_WIDTH": 2,
                 "LOWEST": -127.0, "LARGEST": 127.0, "PTX": True, "LATE": False}  # fmt: skip
    constants |= SCALE
    alone = {"residual": None, "total": None, "FIRST": True, "EARLY": True}
    for more in ({"FIRST": False, "EARLY": False}, alone):
        made = compiled(normalize_kernel.normalize_rows, 90, pointers, constants | more)
        assert "rsqrt.approx" in made.asm["ptx"] and "ld.local" not in made.asm["ptx"]
        assert ("griddepcontrol" in made.asm["ptx"]) is more["EARLY"]


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("adds", [False, True])
def test_norms_whose_scales_are_stored_at_once(adds, late):
    pointers = POINTERS | {"codes": "*fp8e4nv"}
    pointers |= dict.fromkeys(("x", "residual", "total", "weight"), "*bf16")
    constants = {"k": 7168, "WIDTH": 1024, "PIECES": 7, "SIZE": 128, "LANES": 16, "NUM": 0,
                 "NUM_WIDTH": 1, "LOWEST": -448.0, "LARGEST": 448.0, "PTX": True, "FIRST": not adds,
                 "EARLY": True, "LATE": late} | SCALE  # fmt: skip
    if not adds:
        constants |= {"residual": None, "total": None}
    ptx = compiled(normalize_kernel.normalize_rows, 90, pointers, constants).asm["ptx"]
    assert ptx.count("st.global") == (14 if adds else 7) + 1
    # Through shared memory goes the sum over a row alone: each scale is with the thread that stores
    # it. What that takes differs from version to version.
    assert ptx.count("bar.sync") <= 2 and "ld.local" not in ptx
    # x and its weight are read 16 bytes a thread, the weight behind the mean where that is late.
    before, _, after = ptx.partition("rsqrt.approx")
    assert "v4" in after if late else "ld.global" not in after
    assert before.count("ld.global") + after.count("ld.global") == (21 if adds else 14)


@pytest.mark.parametrize("arch, dtype", [(80, "bf16"), (80, "fp32"), (90, "bf16"), (90, "fp16")])
def test_widening(arch, dtype):
    pointers = {"codes": "*u8", "scale": "*fp32", "out": f"*{dtype}"}
    constants = {"ROWS": 128, "COLUMNS": 128, "KIND": "e4m3", "UNIT": 256.0, "HEIGHT": 4,
                 "WIDTH": 1024}  # fmt: skip
    assert "st.global" in compiled(widen_kernel.widen_weight, arch, pointers, constants).asm["ptx"]
