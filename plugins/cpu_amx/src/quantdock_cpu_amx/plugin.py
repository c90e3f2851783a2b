"""What the x86 CPU plugin offers. Importing this file loads neither torch nor a kernel."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quantdock import PlatformEntry, hookimpl

if TYPE_CHECKING:
    from quantdock.kernel import Substitution
    from quantdock.platform import Platform

CONTRACT = 1

CPU_AMX = PlatformEntry(
    name="cpu_amx",
    rank=10,
    probe="quantdock_cpu_amx.probe:probe",
    describe="quantdock_cpu_amx.archs:describe",
    archs=("amx", "avx512", "avx2"),
)


@hookimpl
def get_platforms() -> tuple[PlatformEntry, ...]:
    """Return the x86 platform."""
    return (CPU_AMX,)


@hookimpl
def get_substitutions(platform: Platform) -> tuple[Substitution, ...]:
    """Return what runs instead of schemes that a CPU has no instructions for."""
    if platform.name != CPU_AMX.name:
        return ()
    from quantdock_cpu_amx.substitutions import SUBSTITUTIONS

    return SUBSTITUTIONS
