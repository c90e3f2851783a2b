"""Platforms that have a kernel of their own for what runs in plain torch here."""

from __future__ import annotations

from quantdock.errors import NoKernelError, PlatformError, PluginConflictError
from quantdock.kernel import Problem, select_kernel
from quantdock.plan import LayerPlan
from quantdock.platform import Platform
from quantdock.registry import dispatch_for, get_platform, platform_entries
from quantdock.schemes import parse_scheme


def faster_platforms(
    here: Platform, plan: LayerPlan, dtype: str
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return, as sentences, the kernels for ``plan`` on other platforms: in this machine, and not.

    A platform that is not in this machine is taken at its usual architecture.
    """
    problem = Problem(scheme=parse_scheme(plan.scheme or ""), n=plan.n, k=plan.k, dtype=dtype)
    inside: list[str] = []
    outside: list[str] = []
    for entry in platform_entries():
        if entry.name == here.name:
            continue
        try:
            platform, found = get_platform(entry.name), inside
        except (PlatformError, PluginConflictError):
            found = outside
            try:
                platform = get_platform(f"{entry.name}:{entry.archs[0]}")
            except (PlatformError, PluginConflictError):
                continue
        if kernel := _own_kernel(problem, platform):
            found.append(f"{platform} has {kernel}")
    return tuple(inside), tuple(outside)


def _own_kernel(problem: Problem, platform: Platform) -> str:
    """Return the kernel that ``platform`` runs ``problem`` with; empty where it has none."""
    offers = dispatch_for(platform)
    try:
        kernel = select_kernel(problem, platform, offers.kernels, offers.substitutions).kernel
    except NoKernelError:
        return ""
    return "" if kernel.is_reference else kernel.name
