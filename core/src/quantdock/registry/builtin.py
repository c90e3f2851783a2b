"""What the core itself offers, through the same hooks as every plugin."""

from __future__ import annotations

from pkgutil import resolve_name
from typing import TYPE_CHECKING

from quantdock.hookspecs import hookimpl
from quantdock.platform import PlatformEntry
from quantdock.registry.names import NAMES
from quantdock.registry.spelling import spell

if TYPE_CHECKING:
    from quantdock.config import QuantizationConfig
    from quantdock.kernel import Kernel
    from quantdock.method_name import MethodName
    from quantdock.platform import Platform

CONTRACT = 1

CPU = PlatformEntry(
    name="cpu",
    rank=0,
    probe="quantdock.registry.cpu:probe",
    describe="quantdock.registry.cpu:describe",
    archs=("generic", "avx2", "avx512", "amx", "neon"),
)

_TARGETS = {spell(row.name): row.target for row in NAMES if row.target is not None}


@hookimpl
def get_platforms() -> tuple[PlatformEntry, ...]:
    """Return the plain CPU, which every machine has."""
    return (CPU,)


@hookimpl
def get_quantization_methods() -> tuple[MethodName, ...]:
    """Return the table of every name that users of any engine may type."""
    return NAMES


@hookimpl
def get_quantization_config(
    quantization: str, platform: Platform
) -> type[QuantizationConfig] | None:
    """Return the core's meaning of ``quantization``, the same on every platform."""
    target = _TARGETS.get(spell(quantization))
    if target is None:
        return None
    config: type[QuantizationConfig] = resolve_name(target)
    return config


@hookimpl
def get_kernels(platform: Platform) -> tuple[Kernel, ...]:
    """Return the plain-torch kernels, the reference last."""
    from quantdock.kernels.descriptors import kernels_for

    return kernels_for(platform)
