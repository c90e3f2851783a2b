"""CUDA architectures: facts by (major, minor), and the closest known one below."""

from __future__ import annotations

import pytest

from quantdock.errors import PlatformError
from quantdock_cuda.archs import FEATURES, describe, platform_of


@pytest.mark.parametrize(
    ("arch", "has", "lacks"),
    [
        ("sm_75", {"fp16_mma", "int8_mma"}, {"bf16_mma", "fp8_mma", "cp_async"}),
        ("sm_80", {"bf16_mma", "cp_async", "fp64_mma"}, {"fp8_mma", "wgmma", "tma"}),
        ("sm_86", {"bf16_mma", "int4_mma"}, {"fp8_mma", "fp64_mma"}),
        ("sm_89", {"fp8_mma", "int4_mma"}, {"wgmma", "tma"}),
        (
            "sm_90",
            {"fp8_mma", "wgmma", "tma", "dependent_launch"},
            {"mma_fp4", "tcgen05", "int4_mma"},
        ),
        ("sm_100", {"fp8_mma", "tcgen05", "tma", "mma_fp4", "mx_mma"}, {"wgmma"}),
        ("sm_120", {"fp8_mma", "tma", "mma_fp4", "mx_mma"}, {"wgmma", "tcgen05", "tmem"}),
    ],
)
def test_facts(arch, has, lacks):
    platform = describe(arch)
    assert (platform.name, platform.arch, platform.device) == ("cuda", arch, "cuda")
    assert has <= platform.features
    assert not lacks & platform.features


@pytest.mark.parametrize(
    ("capability", "like"),
    [((8, 7), (8, 6)), ((8, 8), (8, 6)), ((9, 1), (9, 0)), ((10, 3), (10, 0)), ((12, 1), (12, 0))],
)
def test_a_later_minor_version_has_the_facts_of_the_one_below(capability, like):
    platform = platform_of(capability)
    assert platform.features == FEATURES[like]
    assert platform.arch == "sm_{}{}".format(*capability)


def test_the_order_is_by_major_then_minor():
    assert "fp8_mma" in platform_of((12, 1)).features
    assert "fp8_mma" not in platform_of((8, 6)).features
    assert platform_of((8, 9)).features != platform_of((8, 6)).features


def test_spellings_of_one_architecture():
    assert describe("sm_90a") == describe("sm90") == describe("SM_90") == describe("sm_90")


def test_dtypes_follow_the_tensor_cores():
    assert describe("sm_75").dtypes == ("float16", "float32")
    assert describe("sm_80").dtypes[0] == "bfloat16"


@pytest.mark.parametrize("arch", ["sm_70", "sm_130", "sm_61"])
def test_nothing_is_guessed_across_major_versions(arch):
    with pytest.raises(PlatformError) as caught:
        describe(arch)
    assert str(caught.value) == (
        f"Nothing is known of CUDA architecture {arch}.\n"
        "  known: sm_75, sm_80, sm_86, sm_89, sm_90, sm_100, sm_110, sm_120; a later minor version "
        "of one of them is taken for it\n"
        "Update quantdock-cuda if the device is newer; older ones are not supported."
    )


def test_another_word_is_no_architecture():
    with pytest.raises(PlatformError, match="'hopper' is no CUDA architecture"):
        describe("hopper")
