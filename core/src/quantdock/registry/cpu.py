"""The plain CPU: what its instruction set can do, read without torch."""

from __future__ import annotations

import os
import platform as machine
from contextlib import suppress
from pathlib import Path

from quantdock.errors import PlatformError
from quantdock.platform import Absent, Platform

CPUINFO = Path("/proc/cpuinfo")
ONE_DEVICE = "all processors of a machine are one device, number 0"
CGROUP_LIMITS = (
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)

# Flag in /proc/cpuinfo -> feature.
FLAGS = {
    "avx2": "avx2",
    "fma": "fma",
    "f16c": "f16c",
    "avx_vnni": "avx_vnni",
    "avx512f": "avx512f",
    "avx512bw": "avx512bw",
    "avx512_vnni": "avx512_vnni",
    "avx512_bf16": "avx512_bf16",
    "avx512_fp16": "avx512_fp16",
    "amx_tile": "amx_tile",
    "amx_bf16": "amx_bf16",
    "amx_int8": "amx_int8",
    "amx_fp16": "amx_fp16",
    "amx_fp8": "amx_fp8",
    "asimd": "neon",
    "asimddp": "neon_dotprod",
    "i8mm": "neon_i8mm",
    "bf16": "neon_bf16",
    "sve": "sve",
}

_AVX2 = frozenset({"avx2", "fma", "f16c"})
_AVX512 = _AVX2 | {"avx512f", "avx512bw", "avx512_vnni"}
# The usual features of each architecture, for plans made elsewhere.
ARCHS: dict[str, frozenset[str]] = {
    "generic": frozenset(),
    "avx2": _AVX2,
    "avx512": _AVX512,
    "amx": _AVX512 | {"avx512_bf16", "amx_tile", "amx_bf16", "amx_int8"},
    "neon": frozenset({"neon"}),
}
_MARKS = (("amx_tile", "amx"), ("avx512f", "avx512"), ("avx2", "avx2"), ("neon", "neon"))
_FAST_BF16 = frozenset({"avx512_bf16", "amx_bf16", "neon_bf16"})


def probe(index: int = 0) -> Platform | Absent:
    """Return the CPU this process runs on; every machine has one, so number 0 never fails."""
    if index:
        return Absent(reason=ONE_DEVICE)
    features = read_features()
    return Platform(
        name="cpu",
        arch=name_arch(features),
        device="cpu",
        features=features,
        dtypes=order_dtypes(features),
        memory_bytes=read_memory_bytes(),
    )


def describe(arch: str) -> Platform:
    """Return the plain CPU of architecture ``arch``.

    Raises:
        PlatformError: no such architecture.
    """
    if arch not in ARCHS:
        raise PlatformError(
            f"cpu has no architecture {arch!r}.",
            why=[f"known: {', '.join(ARCHS)}"],
            todo="Use one of them, or 'cpu' for this machine's.",
        )
    features = ARCHS[arch]
    return Platform(
        name="cpu", arch=arch, device="cpu", features=features, dtypes=order_dtypes(features)
    )


def read_features(cpuinfo: Path = CPUINFO) -> frozenset[str]:
    """Return the features of the first processor; none where the system does not list flags."""
    try:
        text = cpuinfo.read_text(errors="replace")
    except OSError:
        is_arm = machine.machine().lower() in ("arm64", "aarch64")
        return frozenset({"neon"}) if is_arm else frozenset()
    for line in text.splitlines():
        key, _, flags = line.partition(":")
        if key.strip().lower() in ("flags", "features"):
            return frozenset(FLAGS[flag] for flag in flags.split() if flag in FLAGS)
    return frozenset()


def name_arch(features: frozenset[str]) -> str:
    """Return the architecture that ``features`` amount to."""
    return next((arch for mark, arch in _MARKS if mark in features), "generic")


def order_dtypes(features: frozenset[str]) -> tuple[str, ...]:
    """Return activation dtypes, fastest first: float32 unless bfloat16 has instructions."""
    if features & _FAST_BF16:
        return ("bfloat16", "float32", "float16")
    return ("float32", "bfloat16", "float16")


def read_memory_bytes(limits: tuple[Path, ...] = CGROUP_LIMITS) -> int | None:
    """Return the bytes of memory this process may use, or None where that cannot be known."""
    sizes = []
    with suppress(AttributeError, OSError, ValueError):
        sizes.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    for limit in limits:
        with suppress(OSError, ValueError):
            sizes.append(int(limit.read_text()))
    return min((size for size in sizes if size > 0), default=None)
