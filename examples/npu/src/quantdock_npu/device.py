"""NPUs as facts: one is imagined on this machine, and any can be described by name."""

from __future__ import annotations

from quantdock import Absent, Platform
from quantdock.errors import PlatformError

FEATURES = frozenset({"mx_mma", "bf16_mma"})


def describe(arch: str) -> Platform:
    """Return the NPU of architecture ``arch``, on any machine."""
    if arch != "n1":
        why = ["known: n1"]
        raise PlatformError(f"{arch!r} is no NPU architecture.", why=why, todo="Use n1.")
    return Platform(name="npu", arch=arch, device="cpu", features=FEATURES)


def probe(index: int = 0) -> Platform | Absent:
    """Return NPU ``index``, or why it is not there."""
    return describe("n1") if index == 0 else Absent(reason=f"there is one NPU, so none {index}")
