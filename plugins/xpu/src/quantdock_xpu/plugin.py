"""What the XPU plugin offers. Importing this file loads neither torch nor a kernel."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quantdock import PlatformEntry, hookimpl

if TYPE_CHECKING:
    from quantdock.kernel import Substitution
    from quantdock.platform import Platform

CONTRACT = 1

XPU = PlatformEntry(
    name="xpu",
    rank=90,
    probe="quantdock_xpu.probe:probe",
    describe="quantdock_xpu.archs:describe",
    archs=("bmg", "pvc", "dg2", "lnl", "ptl"),
)


@hookimpl
def get_platforms() -> tuple[PlatformEntry, ...]:
    """Return the XPU platform."""
    return (XPU,)


@hookimpl
def get_substitutions(platform: Platform) -> tuple[Substitution, ...]:
    """Return what runs instead of schemes that a GPU has no instructions for."""
    if platform.name != XPU.name:
        return ()
    from quantdock_xpu.substitutions import SUBSTITUTIONS

    return SUBSTITUTIONS
