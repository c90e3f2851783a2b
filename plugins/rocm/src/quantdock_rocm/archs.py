"""ROCm architectures as facts: what each gfx version can do, in words.

``fp8_fnuz`` marks devices whose fp8 units read the fnuz encodings (gfx94x); gfx950 and gfx12xx
read the OCP ones. Source: the instruction set guides of CDNA 2, 3, 4 and RDNA 3, 4.
"""

from __future__ import annotations

import re

from quantdock.errors import PlatformError
from quantdock.platform import Platform

Version = tuple[int, int, int]  # major, minor, stepping; gfx90a is (9, 0, 10)

_MATRIX = frozenset({"fp16_mma", "bf16_mma", "int8_mma"})
_CDNA = _MATRIX | {"mfma", "fp64_mma", "wave64"}
_CDNA3 = _CDNA | {"fp8_mma", "fp8_fnuz", "sparse_mma"}
_CDNA4 = (_CDNA3 - {"fp8_fnuz"}) | {"mma_fp4", "mma_fp6", "mx_mma"}
_RDNA3 = _MATRIX | {"wmma", "int4_mma", "wave32"}

FEATURES: dict[Version, frozenset[str]] = {
    (9, 0, 10): _CDNA,
    (9, 4, 0): _CDNA3,
    (9, 4, 1): _CDNA3,
    (9, 4, 2): _CDNA3,
    (9, 5, 0): _CDNA4,
    (11, 0, 0): _RDNA3,
    (11, 5, 0): _RDNA3,
    (12, 0, 0): _RDNA3 | {"fp8_mma", "sparse_mma"},
    (12, 0, 1): _RDNA3 | {"fp8_mma", "sparse_mma"},
}


def describe(arch: str) -> Platform:
    """Return the ROCm platform of architecture ``arch``, such as gfx942.

    Raises:
        PlatformError: no such architecture, or none that is known lies near it.
    """
    return platform_of(arch)


def platform_of(arch: str, memory_bytes: int | None = None) -> Platform:
    """Return the ROCm platform of ``arch``; what follows a colon (":xnack-") is no matter."""
    name = arch.partition(":")[0]
    return Platform(
        name="rocm",
        arch=name,
        device="cuda",  # the device type that PyTorch's ROCm builds use
        features=FEATURES[_closest(parse_version(name))],
        memory_bytes=memory_bytes,
    )


def parse_version(arch: str) -> Version:
    """Return (major, minor, stepping) of a gfx name; minor is one digit, stepping one hex digit.

    Raises:
        PlatformError: the name has another form.
    """
    match = re.fullmatch(r"gfx(\d{1,2})(\d)([0-9a-f])", arch)
    if match is None:
        raise PlatformError(
            f"{arch!r} is no ROCm architecture.",
            why=[f"known: {_known()}"],
            todo="Write it as rocminfo prints it: gfx942.",
        )
    return int(match[1]), int(match[2]), int(match[3], 16)


def _closest(version: Version) -> Version:
    """Return the highest known version up to this one, within its major version."""
    lower = [known for known in FEATURES if known[0] == version[0] and known <= version]
    if not lower:
        raise PlatformError(
            f"Nothing is known of ROCm architecture {_spell(version)}.",
            why=[f"known: {_known()}; a later version of the same major one is taken for it"],
            todo="Update quantdock-rocm if the device is newer; older ones are not supported.",
        )
    return max(lower)


def _spell(version: Version) -> str:
    return "gfx{}{}{:x}".format(*version)


def _known() -> str:
    return ", ".join(map(_spell, FEATURES))
