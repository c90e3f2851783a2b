"""Looking at the processor: what it can do, and whether the system lets us use its tiles."""

from __future__ import annotations

import ctypes
import sys

from quantdock.platform import Absent, Platform
from quantdock.registry import cpu
from quantdock_cpu_amx.archs import platform_of

# arch_prctl(2) on x86-64 Linux: system call 158; 18 is the tile data state.
_ARCH_PRCTL = 158
_ARCH_REQ_XCOMP_PERM = 0x1023
_XFEATURE_XTILEDATA = 18


def probe(index: int = 0) -> Platform | Absent:
    """Return the platform of this processor, or why it is none of ours.

    A processor without AMX is left to the core's plain ``cpu``.
    """
    if index:
        return Absent(reason=cpu.ONE_DEVICE)
    features = cpu.read_features()
    if "amx_tile" not in features:
        return Absent(reason="this processor has no AMX (the flag amx_tile is not there)")
    if not request_tiles():
        return Absent(reason="the system does not let this process use AMX tiles")
    return platform_of(features, cpu.read_memory_bytes())


def request_tiles() -> bool:
    """Ask the system to let this process use AMX tiles; return whether it does."""
    if sys.platform != "linux":
        return False
    libc = ctypes.CDLL(None, use_errno=True)
    refused: int = libc.syscall(_ARCH_PRCTL, _ARCH_REQ_XCOMP_PERM, _XFEATURE_XTILEDATA)
    return refused == 0
