"""XPU architectures as facts: what each family of Intel GPUs can do, in words.

Source: the oneAPI GPU optimization guide and the SYCL joint_matrix tables (XMX operand types).
"""

from __future__ import annotations

from quantdock.errors import PlatformError
from quantdock.platform import Platform

_XMX = frozenset({"xmx", "fp16_mma", "bf16_mma", "int8_mma"})
_XE2 = _XMX | {"tf32_mma", "int4_mma", "block_2d_io"}

FEATURES: dict[str, frozenset[str]] = {
    "bmg": _XE2 | {"fp64"},
    "pvc": _XMX | {"tf32_mma", "block_2d_io", "fp64"},
    "dg2": _XMX | {"int4_mma"},
    "lnl": _XE2 | {"fp64"},
    "ptl": _XE2 | {"fp64"},
}


def describe(arch: str) -> Platform:
    """Return the XPU platform of architecture ``arch``, such as bmg.

    Raises:
        PlatformError: no such architecture.
    """
    if arch not in FEATURES:
        raise PlatformError(
            f"{arch!r} is no XPU architecture.",
            why=[f"known: {', '.join(FEATURES)}"],
            todo="Use one of them; bmg is Arc B-series, pvc Data Center GPU Max, dg2 Arc A-series.",
        )
    return platform_of(arch, FEATURES[arch])


def platform_of(arch: str, features: frozenset[str], memory_bytes: int | None = None) -> Platform:
    """Return the XPU platform with these facts."""
    return Platform(
        name="xpu", arch=arch, device="xpu", features=features, memory_bytes=memory_bytes
    )
