"""QuantDock: one quantization layer for every device.

The names below are loaded when first used, so that ``import quantdock`` costs nothing.
"""

from __future__ import annotations

TYPE_CHECKING = False  # what typing calls so; importing typing would double the cost of this file

if TYPE_CHECKING:
    from typing import Any

    from quantdock.config import QuantizationConfig
    from quantdock.diagnosis import doctor
    from quantdock.errors import QuantDockError
    from quantdock.hookspecs import hookimpl
    from quantdock.integrations.transformers import load, reload
    from quantdock.integrations.transformers.converting import convert_checkpoint
    from quantdock.kernel import Kernel, Policy, Substitution
    from quantdock.layers import ParallelGroup
    from quantdock.method import QuantizeMethodBase
    from quantdock.method_name import MethodName
    from quantdock.plan import Plan
    from quantdock.plan.planner import explain
    from quantdock.platform import Absent, Platform, PlatformEntry
    from quantdock.registry import dispatch_for, get_platform, get_quantization_config
    from quantdock.schemes import SchemeSet, SpecSet

__version__ = "0.1.0"

_EXPORTS = {
    "Absent": "quantdock.platform",
    "Kernel": "quantdock.kernel",
    "MethodName": "quantdock.method_name",
    "ParallelGroup": "quantdock.layers",
    "Plan": "quantdock.plan",
    "Platform": "quantdock.platform",
    "PlatformEntry": "quantdock.platform",
    "Policy": "quantdock.kernel",
    "QuantDockError": "quantdock.errors",
    "QuantizationConfig": "quantdock.config",
    "QuantizeMethodBase": "quantdock.method",
    "SchemeSet": "quantdock.schemes",
    "SpecSet": "quantdock.schemes",
    "Substitution": "quantdock.kernel",
    "convert_checkpoint": "quantdock.integrations.transformers.converting",
    "dispatch_for": "quantdock.registry",
    "doctor": "quantdock.diagnosis",
    "explain": "quantdock.plan.planner",
    "get_platform": "quantdock.registry",
    "get_quantization_config": "quantdock.registry",
    "hookimpl": "quantdock.hookspecs",
    "load": "quantdock.integrations.transformers",
    "reload": "quantdock.integrations.transformers",
}

__all__ = [
    "Absent",
    "Kernel",
    "MethodName",
    "ParallelGroup",
    "Plan",
    "Platform",
    "PlatformEntry",
    "Policy",
    "QuantDockError",
    "QuantizationConfig",
    "QuantizeMethodBase",
    "SchemeSet",
    "SpecSet",
    "Substitution",
    "convert_checkpoint",
    "dispatch_for",
    "doctor",
    "explain",
    "get_platform",
    "get_quantization_config",
    "hookimpl",
    "load",
    "reload",
]


def __getattr__(name: str) -> Any:
    """Load a public name from its module when it is first used (PEP 562)."""
    if name not in _EXPORTS:
        raise AttributeError(f"module 'quantdock' has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(_EXPORTS[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(_EXPORTS))
