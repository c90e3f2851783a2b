"""What CUDA devices without fp8 tensor cores run instead, as rows of a table."""

from __future__ import annotations

import pytest

from quantdock import dispatch_for
from quantdock.kernel import Problem
from quantdock.schemes import parse_scheme
from quantdock.testing import use_plugins

SCHEMES = [
    "fp8_e4m3[*x*] x fp8_e4m3[*x*]",
    "fp8_e4m3[1x*] x fp8_e4m3[1x*]:dynamic",
    "fp8_e4m3[128x128] x fp8_e4m3[1x128]:dynamic",
    "fp8_e4m3[1x32]:e8m0:ceil x fp8_e4m3[1x32]:e8m0:ceil:dynamic",
]


def applying(arch, text):
    """Return the names of the rows that change a scheme on an architecture."""
    with use_plugins("quantdock_cuda.plugin"):
        offered = dispatch_for(f"cuda:{arch}")
        scheme = parse_scheme(text)
        return [s.name for s in offered.substitutions if s.applies(scheme, offered.platform)]


@pytest.mark.parametrize("text", SCHEMES)
@pytest.mark.parametrize("arch", ["sm_75", "sm_80", "sm_86"])
def test_below_fp8_tensor_cores_it_is_weight_only(arch, text):
    assert applying(arch, text) == ["fp8_weight_only"]


@pytest.mark.parametrize("text", SCHEMES)
@pytest.mark.parametrize("arch", ["sm_89", "sm_90", "sm_100", "sm_120", "sm_121"])
def test_with_them_it_stays_as_asked(arch, text):
    assert applying(arch, text) == []


@pytest.mark.parametrize(
    "text, row",
    [
        ("fp4_e2m1[1x16]:e4m3:second[*x*] x fp4_e2m1[1x16]:e4m3:dynamic:second[*x*]", "small"),
        ("fp4_e2m1[1x32]:e8m0:even x fp4_e2m1[1x32]:e8m0:even:dynamic", "small"),
        ("fp6_e3m2[1x32]:e8m0:even x fp6_e3m2[1x32]:e8m0:even:dynamic", "small"),
        ("fp4_e2m1[1x32]:e8m0:even x fp8_e4m3[1x32]:e8m0:ceil:dynamic", "small"),
        ("int4[1x128] x fp8_e4m3[*x*]", "small"),
        ("int4[1x128] x int8[1x*]:dynamic", "small"),
        ("fp8_e5m2[1x*] x fp8_e5m2[1x*]:dynamic", "e5m2"),
    ],
)
@pytest.mark.parametrize("arch", ["sm_89", "sm_90", "sm_100", "sm_120"])
def test_what_no_kernel_multiplies_is_weight_only(arch, text, row):
    assert applying(arch, text) == [f"{row}_weight_only"]


@pytest.mark.parametrize(
    ("text", "kernel", "executed"),
    [
        ("int8[1x*] x int8[1x*]:dynamic", "cuda_int8", None),
        ("int8[128x128] x int8[1x128]:dynamic", "cuda_int8", None),
        ("int8[1x*] x int8[1x*]:zero:dynamic", "cuda_w4a16", "int8[1x*]"),
        ("int8[1x*] x uint8[*x*]:zero", "cuda_w4a16", "int8[1x*]"),
        ("int8[*x*] x int8[*x*]:zero", "cuda_w8a16", "int8[*x*]"),
        ("uint8[1x*]:zero x int8[1x*]:dynamic", "cuda_w4a16", "uint8[1x*]:zero"),
        ("int8[1x*] x int8[*x*] + input multiplier", "cuda_w4a16", "int8[1x*] + input multiplier"),
    ],
)
@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_120"])
def test_int8_that_no_kernel_multiplies_is_weight_only(arch, text, kernel, executed):
    """Files of ModelOpt's SmoothQuant, and of activations with zero points."""
    with use_plugins("quantdock_cuda.plugin"):
        scheme = parse_scheme(text)
        found = dispatch_for(f"cuda:{arch}").select(
            Problem(scheme=scheme, n=256, k=256, dtype="bfloat16")
        )
    assert (found.kernel.name, str(found.scheme)) == (kernel, executed or text)
    assert (found.substitution is None) is (executed is None)


def test_without_int8_tensor_cores_int8_is_left_alone():
    assert applying("sm_75", "int8[1x*] x int8[1x*]:dynamic") == []
