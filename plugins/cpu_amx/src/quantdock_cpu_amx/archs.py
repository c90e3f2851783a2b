"""x86 CPUs as facts, and the methods that AMX kernels are made for."""

from __future__ import annotations

from quantdock.errors import PlatformError
from quantdock.platform import Platform
from quantdock.registry import cpu

ARCHS = ("amx", "avx512", "avx2")

# With AMX the names every QuantDock knows are closed to these: the ones whose fp8 and integer
# schemes its kernels, the core's among them, serve. The at-load shorthands, per-row dialects and
# the tools' own formats store the same schemes as fp8, w8a8_int8 and awq.
AMX_METHODS = frozenset(
    {
        "fp8",
        "fp8_per_tensor",
        "fp8_per_channel",
        "fp8_per_block",
        "w8a8_fp8",
        "fbgemm_fp8",
        "w8a8_int8",
        "compressed-tensors",
        "modelopt",
        "quark",
        "awq",
        "gptq",
        "mxfp4",
        "auto-round",
        "auto-round-int8",
        "none",
    }
)


def describe(arch: str) -> Platform:
    """Return the x86 platform of architecture ``arch``: amx, avx512 or avx2.

    Raises:
        PlatformError: no such architecture.
    """
    if arch not in ARCHS:
        raise PlatformError(
            f"{arch!r} is no architecture of cpu_amx.",
            why=[f"known: {', '.join(ARCHS)}"],
            todo="Use one of them, or platform 'cpu' for any other processor.",
        )
    return platform_of(cpu.ARCHS[arch])


def platform_of(features: frozenset[str], memory_bytes: int | None = None) -> Platform:
    """Return the x86 platform with these facts; AMX closes its set of methods."""
    arch = cpu.name_arch(features)
    return Platform(
        name="cpu_amx",
        arch=arch,
        device="cpu",
        features=features,
        dtypes=cpu.order_dtypes(features),
        memory_bytes=memory_bytes,
        builtin_methods=AMX_METHODS if arch == "amx" else None,
    )
