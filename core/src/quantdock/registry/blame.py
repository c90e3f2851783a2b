"""Whose fault an unforeseen error is, as far as its traceback tells."""

from __future__ import annotations

from collections.abc import Sequence
from traceback import walk_tb

from quantdock.registry.plugin import Plugin
from quantdock.registry.settings import KERNEL

_NOBODY_S = "A fault of QuantDock or of a library it uses"


def blame(error: BaseException, plugins: Sequence[Plugin]) -> tuple[str, str]:
    """Return where ``error`` left the code of a plugin ("" if nowhere), and whose fault it is."""
    for frame, line in reversed(list(walk_tb(error.__traceback__))):
        module = str(frame.f_globals.get("__name__", ""))
        for plugin in plugins:
            if not plugin.is_core and _package(plugin.module) == _package(module):
                fault = f"A fault of {plugin.distribution} or of a library it uses"
                other = f", and another kernel may run (--require, {KERNEL})"
                return f"in {module}, line {line}, of the plugin {plugin}", fault + other
    return "", _NOBODY_S


def _package(module: str) -> str:
    return module.partition(".")[0]
