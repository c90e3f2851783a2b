"""The hooks a plugin may implement. The parameter names are part of the contract.

A plugin is a module that states ``CONTRACT = 1`` and marks functions with ``hookimpl``; its
distribution advertises it in the entry-point group ``quantdock``. See docs/plugin-authors.md.

>>> CONTRACT
1
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pluggy

if TYPE_CHECKING:
    from quantdock.config import QuantizationConfig
    from quantdock.kernel import Kernel, Substitution
    from quantdock.method_name import MethodName
    from quantdock.platform import Platform, PlatformEntry

CONTRACT = 1
PROJECT = "quantdock"

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


@hookspec
def get_platforms() -> Sequence[PlatformEntry]:
    """Return the platforms this plugin owns."""
    raise AssertionError("a hookspec is never called")


@hookspec
def get_quantization_config(
    quantization: str, platform: Platform
) -> type[QuantizationConfig] | None:
    """Return what the method name ``quantization`` means on ``platform``; None: no opinion."""
    raise AssertionError("a hookspec is never called")


@hookspec
def get_quantization_methods() -> Sequence[MethodName]:
    """Return the method names, aliases and online shorthands this plugin adds."""
    raise AssertionError("a hookspec is never called")


@hookspec
def get_kernels(platform: Platform) -> Sequence[Kernel]:
    """Return the kernels this plugin offers for ``platform``, best first."""
    raise AssertionError("a hookspec is never called")


@hookspec
def get_substitutions(platform: Platform) -> Sequence[Substitution]:
    """Return the changes of scheme that ``platform`` declares, first match wins."""
    raise AssertionError("a hookspec is never called")


@hookspec
def get_tuner(platform: Platform) -> str | None:
    """Return the "module:class" that measures ways of this plugin's kernels (``tuner.Tuner``)."""
    raise AssertionError("a hookspec is never called")
