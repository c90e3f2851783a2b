"""CUDA architectures as facts: what each compute capability can do, in words.

Newer is no superset of older: sm_100 has no wgmma, sm_120 neither wgmma nor tcgen05, and integer
4-bit tensor cores end with sm_89.
Source: NVIDIA PTX ISA, the "Target ISA Notes" of mma, wgmma, tcgen05.mma and cp.async.bulk.
"""

from __future__ import annotations

import re

from quantdock.errors import PlatformError
from quantdock.platform import Platform

Capability = tuple[int, int]

_AMPERE = frozenset(
    {"fp16_mma", "bf16_mma", "tf32_mma", "int8_mma", "int4_mma", "cp_async", "sparse_mma"}
)
_ADA = _AMPERE | {"fp8_mma"}
_BULK = frozenset({"tma", "cluster", "dependent_launch"})
_HOPPER = (_ADA - {"int4_mma"}) | _BULK | {"wgmma", "fp64_mma"}
_NARROW = frozenset({"mma_fp4", "mma_fp6", "mx_mma"})
_BLACKWELL = (_HOPPER - {"wgmma"}) | _NARROW | {"tcgen05", "tmem"}

FEATURES: dict[Capability, frozenset[str]] = {
    (7, 5): frozenset({"fp16_mma", "int8_mma", "int4_mma"}),
    (8, 0): _AMPERE | {"fp64_mma"},
    (8, 6): _AMPERE,
    (8, 9): _ADA,
    (9, 0): _HOPPER,
    (10, 0): _BLACKWELL,
    (11, 0): _BLACKWELL,
    (12, 0): (_ADA - {"int4_mma"}) | _BULK | _NARROW,
}


def describe(arch: str) -> Platform:
    """Return the CUDA platform of architecture ``arch``, such as sm_90.

    Raises:
        PlatformError: no such architecture, or none that is known lies near it.
    """
    match = re.fullmatch(r"sm_?(\d+)(\d)[a-z]?", arch.lower())
    if match is None:
        raise PlatformError(
            f"{arch!r} is no CUDA architecture.",
            why=[f"known: {_known()}"],
            todo="Write it as sm_ and the compute capability without its dot: sm_90.",
        )
    return platform_of((int(match[1]), int(match[2])))


def platform_of(capability: Capability, memory_bytes: int | None = None) -> Platform:
    """Return the CUDA platform of a compute capability (major, minor).

    Raises:
        PlatformError: no known capability of its major version is that low.
    """
    features = FEATURES[_closest(capability)]
    has_bf16 = "bf16_mma" in features
    return Platform(
        name="cuda",
        arch="sm_{}{}".format(*capability),
        device="cuda",
        features=features,
        dtypes=("bfloat16", "float16", "float32") if has_bf16 else ("float16", "float32"),
        memory_bytes=memory_bytes,
    )


def _closest(capability: Capability) -> Capability:
    """Return the highest known capability up to this one, within its major version."""
    lower = [known for known in FEATURES if known[0] == capability[0] and known <= capability]
    if not lower:
        raise PlatformError(
            "Nothing is known of CUDA architecture sm_{}{}.".format(*capability),
            why=[f"known: {_known()}; a later minor version of one of them is taken for it"],
            todo="Update quantdock-cuda if the device is newer; older ones are not supported.",
        )
    return max(lower)


def _known() -> str:
    return ", ".join(f"sm_{major}{minor}" for major, minor in FEATURES)
