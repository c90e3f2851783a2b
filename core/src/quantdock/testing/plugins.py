"""Plugins for a test: made of functions, and in use as if nothing else were installed.

>>> from quantdock import MethodName, get_quantization_config
>>> row = MethodName(name="toy", summary="a toy", target="quantdock.configs.fp8:Fp8Config")
>>> plugin = make_plugin("acme_toy", get_quantization_methods=lambda: (row,))
>>> with use_plugins(plugin):
...     get_quantization_config("toy").__name__
'Fp8Config'
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from types import ModuleType

from quantdock.hookspecs import CONTRACT, hookimpl
from quantdock.registry.current import use_registry
from quantdock.registry.plugin import Candidate
from quantdock.registry.registry import Registry
from quantdock.registry.settings import Settings
from quantdock.registry.validation import HOOKS

NO_SETTINGS = Settings()


def make_plugin(name: str, **members: object) -> ModuleType:
    """Return a plugin module; members named like hooks are marked, the rest are as given.

    It states this QuantDock's CONTRACT unless a member says otherwise.
    """
    module = ModuleType(name, "A plugin made for a test.")
    module.__dict__.update({"CONTRACT": CONTRACT, **members})
    for hook in HOOKS:
        if callable(function := members.get(hook)):
            hookimpl(function)
    return module


def advertise(
    plugin: ModuleType | str, distribution: str | None = None, version: str | None = None
) -> Candidate:
    """Return ``plugin`` as a distribution would advertise it; a string is imported when loaded."""
    name = plugin if isinstance(plugin, str) else plugin.__name__
    package = name.partition(".")[0]

    def load() -> ModuleType:
        return import_module(plugin) if isinstance(plugin, str) else plugin

    return Candidate(
        distribution=distribution or package.replace("_", "-"),
        version=version or "0.0.0",
        module=name,
        load=load,
    )


@contextmanager
def use_plugins(
    *plugins: ModuleType | str | Candidate, settings: Settings = NO_SETTINGS
) -> Iterator[Registry]:
    """Use the core and exactly these plugins for the length of a with block.

    One that is broken becomes a recorded failure, as if it were installed; the environment's
    plugin settings are not read.
    """
    candidates = [p if isinstance(p, Candidate) else advertise(p) for p in plugins]
    with use_registry(Registry(candidates, settings)) as registry:
        yield registry
