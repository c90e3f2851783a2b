"""Looking at the processor: what it can do, and whether the system lets us use its tiles."""

from __future__ import annotations

import ctypes
import sys

from quantdock.platform import Absent, Platform
from quantdock.registry import cpu
from quantdock_cpu_amx.archs import ARCHS, platform_of

# arch_prctl(2) on x86-64 Linux: system call 158; 18 is the tile data state.
_ARCH_PRCTL = 158
_ARCH_REQ_XCOMP_PERM = 0x1023
_XFEATURE_XTILEDATA = 18


def probe(index: int = 0) -> Platform | Absent:
    """Return the platform of this processor, or why it is none of ours."""
    features = cpu.read_features()
    if cpu.name_arch(features) not in ARCHS:
        return Absent(reason="the processor has no AVX2, or the system does not list its flags")
    if "amx_tile" in features and not request_tiles():
        features = frozenset(f for f in features if not f.startswith("amx_"))
    return platform_of(features, cpu.read_memory_bytes())


def request_tiles() -> bool:
    """Ask the system to let this process use AMX tiles; return whether it does."""
    if sys.platform != "linux":
        return False
    libc = ctypes.CDLL(None, use_errno=True)
    refused: int = libc.syscall(_ARCH_PRCTL, _ARCH_REQ_XCOMP_PERM, _XFEATURE_XTILEDATA)
    return refused == 0
