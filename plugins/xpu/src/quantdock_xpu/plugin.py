"""What the XPU plugin offers. Importing this file loads neither torch nor a kernel."""

from __future__ import annotations

from pkgutil import resolve_name
from typing import TYPE_CHECKING

from quantdock import PlatformEntry, hookimpl

if TYPE_CHECKING:
    from quantdock.config import QuantizationConfig
    from quantdock.kernel import Kernel, Substitution
    from quantdock.platform import Platform

CONTRACT = 1

XPU = PlatformEntry(
    name="xpu",
    rank=90,
    probe="quantdock_xpu.probe:probe",
    describe="quantdock_xpu.archs:describe",
    archs=("bmg", "pvc", "dg2", "lnl", "ptl"),
)

# What methods mean here that the core means otherwise.
CONFIGS = {
    "awq": "quantdock_xpu.configs:AwqXpuConfig",
    "gptq": "quantdock_xpu.configs:GptqXpuConfig",
}


@hookimpl
def get_platforms() -> tuple[PlatformEntry, ...]:
    """Return the XPU platform."""
    return (XPU,)


@hookimpl
def get_quantization_config(
    quantization: str, platform: Platform
) -> type[QuantizationConfig] | None:
    """Return what ``quantization`` means on XPU, or None if the core's meaning stands."""
    if platform.name != XPU.name or quantization not in CONFIGS:
        return None
    config: type[QuantizationConfig] = resolve_name(CONFIGS[quantization])
    return config


@hookimpl
def get_kernels(platform: Platform) -> tuple[Kernel, ...]:
    """Return the kernels for Intel GPUs."""
    if platform.name != XPU.name:
        return ()
    from quantdock_xpu.kernels import KERNELS

    return KERNELS


@hookimpl
def get_substitutions(platform: Platform) -> tuple[Substitution, ...]:
    """Return what runs instead of schemes that a GPU has no instructions for."""
    if platform.name != XPU.name:
        return ()
    from quantdock_xpu.substitutions import SUBSTITUTIONS

    return SUBSTITUTIONS
