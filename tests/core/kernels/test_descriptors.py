"""What the core's kernels say of themselves."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pkgutil import resolve_name

import pytest

from quantdock.kernel import Problem
from quantdock.kernels.descriptors import (
    INT4_PACK,
    INT8_MM,
    INT8_PACK,
    PLAIN_INPUT,
    REFERENCE,
    kernels_for,
)
from quantdock.platform import Platform
from quantdock.schemes import parse_scheme

CPU = Platform(name="cpu", arch="avx2", device="cpu", features=frozenset({"avx2"}))
GPU = Platform(name="demo", arch="one", device="demo")


def test_the_descriptors_load_without_torch() -> None:
    code = "import sys, quantdock.kernels.descriptors; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_an_accelerator_is_offered_the_reference_only() -> None:
    assert [kernel.name for kernel in kernels_for(GPU)] == [PLAIN_INPUT.name, REFERENCE.name]
    assert kernels_for(CPU) == (INT4_PACK, INT8_PACK, INT8_MM, PLAIN_INPUT, REFERENCE)


@pytest.mark.parametrize("kernel", [REFERENCE, INT8_PACK, INT4_PACK, INT8_MM])
def test_each_target_exists_and_says_what_it_costs(kernel: object) -> None:
    assert isinstance(kernel, type(REFERENCE))
    target = resolve_name(kernel.target)
    assert all(hasattr(target, name) for name in ("prepare", "restore", "apply", "warmup"))
    assert "time of an unquantized" in kernel.note


@pytest.mark.parametrize(
    "scheme",
    [
        "fp8_e4m3[*x*]",
        "fp8_e4m3[*x*] x fp8_e4m3[*x*]",
        "fp8_e4m3[1x*] x fp8_e4m3[1x*]:dynamic",
        "fp8_e4m3[128x128] x fp8_e4m3[1x128]:dynamic",
        "fp8_e4m3[1x32]:e8m0:ceil x fp8_e4m3[1x32]:e8m0:ceil:dynamic",
        "fp8_e4m3fnuz[1x*] x fp8_e4m3fnuz[1x*]:dynamic",
        "int8[1x*] x int8[*x*]",
        "int8[1x128]",
        "int1[1x*]",
        "int3[1x128]:act-order",
        "uint4[1x128]:bf16:zero:act-order",
        "uint8[*x*]:zero",
        "int4[1x128] x int8[1x*]:zero:dynamic + input multiplier",
        "int4[1x128] x fp8_e4m3[1x*]:dynamic",
        "int8[1x*] x int8[*x*]:zero",
    ],
)
def test_the_reference_takes_every_scheme(scheme: str) -> None:
    assert REFERENCE.why_not(Problem(scheme=parse_scheme(scheme), n=3, k=5), CPU) == ()
    assert REFERENCE.why_not(Problem(scheme=parse_scheme(scheme), dtype="float16"), GPU) == ()


@pytest.mark.parametrize(
    ("scheme", "reason"),
    [
        ("fp8_e4m3[1x*]:zero", "weight has a zero point, it takes none"),
        ("fp8_e4m3[1x128]:act-order", "weight has groups in any order, it takes a fixed one"),
        ("int8[1x*] x fp8_e4m3[*x*]:zero", "activation has a zero point, it takes none"),
        ("int8[1x*] x int1[1x*]:dynamic", "activation element is int1"),
        ("fp8_e4m3[1x*] x fp8_e4m3[1x*]", "activation tile is channel"),
        ("fp8_e4m3[1x*] x fp8_e4m3[128x128]:dynamic", "activation tile is block"),
    ],
)
def test_the_reference_refuses_the_rest_with_the_reason(scheme: str, reason: str) -> None:
    reasons = REFERENCE.why_not(Problem(scheme=parse_scheme(scheme)), CPU)
    assert any(text.startswith(reason) for text in reasons), reasons


def test_int8_pack_names_every_limit() -> None:
    problem = Problem(scheme=parse_scheme("int8[1x128]"), n=3, k=72, dtype="float32")
    generic = Platform(name="cpu", arch="generic", device="cpu")
    assert INT8_PACK.why_not(problem, generic) == (
        "weight tile is group, it takes channel, tensor",
        "cpu:generic lacks ['avx2']",
        "K=72 is no multiple of 16",
        "takes bfloat16 activations, not float32",
    )


def test_int4_pack_names_every_limit() -> None:
    problem = Problem(
        scheme=parse_scheme("int2[16x128] + input multiplier"), n=24, k=72, dtype="float16"
    )
    generic = Platform(name="cpu", arch="generic", device="cpu")
    assert INT4_PACK.why_not(problem, generic) == (
        "weight element is int2, it takes int3, int4, uint3, uint4",
        "weight tile is block, it takes channel, group",
        "cpu:generic lacks ['avx2']",
        "N=24 is no multiple of 16",
        "K=72 is no multiple of 32",
        "takes bfloat16 activations, not float16",
    )


@pytest.mark.parametrize("scheme", ["int4[1x*]", "uint4[1x128]:zero", "int4[1x32]:act-order"])
def test_int4_pack_takes_what_gptq_and_awq_store(scheme: str) -> None:
    problem = Problem(scheme=parse_scheme(scheme), n=48, k=256, dtype="bfloat16")
    assert INT4_PACK.why_not(problem, CPU) == ()


def test_int8_mm_names_every_limit() -> None:
    scheme = parse_scheme("int8[1x128] x int8[1x*]:zero:dynamic")
    assert INT8_MM.why_not(Problem(scheme=scheme, n=3, k=5, dtype="float32"), CPU) == (
        "weight tile is group, it takes channel, tensor",
        "activation has a zero point, it takes none",
        "cpu:avx2 lacks ['avx512_vnni']",
    )


@pytest.mark.parametrize(
    "activation", ["int8[*x*]", "int8[1x*]:dynamic", "int8[*x*]:dynamic + input multiplier"]
)
def test_int8_mm_takes_w8a8(activation: str) -> None:
    vnni = Platform(
        name="cpu", arch="avx512", device="cpu", features=frozenset({"avx2", "avx512_vnni"})
    )
    problem = Problem(scheme=parse_scheme(f"int8[1x*] x {activation}"), n=3, k=5)
    assert INT8_MM.why_not(problem, vnni) == ()


def test_notes_say_for_which_machines_their_figures_hold() -> None:
    kernels = kernels_for(Platform(name="cpu", arch="amx", device="cpu"))
    timed = [kernel for kernel in kernels if "the time of" in kernel.note]
    assert len(timed) == 4
    assert all("on CPUs without AMX" in kernel.note for kernel in timed)
    *_, reference = kernels_for(Platform(name="toy", arch="t1", device="toy"))
    assert reference == replace(REFERENCE, note="slow; it was timed on CPUs only")
