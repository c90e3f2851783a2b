"""ROCm architectures: facts by (major, minor, stepping), and the closest known one below."""

from __future__ import annotations

import pytest

from quantdock.errors import PlatformError
from quantdock_rocm.archs import FEATURES, describe, parse_version


@pytest.mark.parametrize(
    ("arch", "has", "lacks"),
    [
        ("gfx90a", {"mfma", "bf16_mma", "wave64"}, {"fp8_mma", "fp8_fnuz"}),
        ("gfx940", {"mfma", "fp8_mma", "fp8_fnuz"}, {"mma_fp4"}),
        ("gfx942", {"mfma", "fp8_mma", "fp8_fnuz"}, {"mma_fp4", "wmma"}),
        ("gfx950", {"mfma", "fp8_mma", "mma_fp4", "mx_mma"}, {"fp8_fnuz"}),
        ("gfx1100", {"wmma", "bf16_mma", "wave32"}, {"mfma", "fp8_mma"}),
        ("gfx1150", {"wmma", "bf16_mma"}, {"fp8_mma"}),
        ("gfx1200", {"wmma", "fp8_mma"}, {"fp8_fnuz", "mfma"}),
        ("gfx1201", {"wmma", "fp8_mma"}, {"fp8_fnuz"}),
    ],
)
def test_facts(arch, has, lacks):
    platform = describe(arch)
    assert (platform.name, platform.arch, platform.device) == ("rocm", arch, "cuda")
    assert has <= platform.features
    assert not lacks & platform.features


def test_versions_are_three_numbers():
    assert parse_version("gfx90a") == (9, 0, 10)
    assert parse_version("gfx942") == (9, 4, 2)
    assert parse_version("gfx1201") == (12, 0, 1)


@pytest.mark.parametrize(
    ("arch", "like"),
    [
        ("gfx90c", (9, 0, 10)),
        ("gfx943", (9, 4, 2)),
        ("gfx951", (9, 5, 0)),
        ("gfx1101", (11, 0, 0)),
        ("gfx1151", (11, 5, 0)),
        ("gfx1250", (12, 0, 1)),
    ],
)
def test_a_later_version_has_the_facts_of_the_one_below(arch, like):
    assert describe(arch).features == FEATURES[like]
    assert describe(arch).arch == arch


def test_what_the_driver_appends_is_no_matter():
    assert describe("gfx942:sramecc+:xnack-") == describe("gfx942")


@pytest.mark.parametrize("arch", ["gfx908", "gfx1030", "gfx1300"])
def test_nothing_is_guessed_across_major_versions_or_downwards(arch):
    with pytest.raises(PlatformError, match=f"Nothing is known of ROCm architecture {arch}"):
        describe(arch)


def test_another_word_is_no_architecture():
    with pytest.raises(PlatformError, match="'mi300' is no ROCm architecture"):
        describe("mi300")
