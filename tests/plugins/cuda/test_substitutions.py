"""What CUDA devices without fp8 tensor cores run instead, as rows of a table."""

from __future__ import annotations

import pytest

from quantdock import dispatch_for
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


def test_int8_schemes_are_left_alone():
    assert applying("sm_80", "int8[1x*] x int8[1x*]:dynamic") == []
