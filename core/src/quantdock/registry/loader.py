"""From an advertised module to a plugin: import it, check the contract, ask what it owns."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from types import ModuleType
from typing import Any, TypeVar

import pluggy

from quantdock.hookspecs import PROJECT
from quantdock.method_name import MethodName
from quantdock.platform import PlatformEntry
from quantdock.registry.plugin import Candidate, Plugin, describe_exception
from quantdock.registry.validation import find_contract_fault, find_hook_faults, implemented_hooks

Row = TypeVar("Row")


class Refusal(Exception):
    """Why a candidate is not used; ``stage`` is one of Failure's."""

    def __init__(self, stage: str, reason: str) -> None:
        super().__init__(reason)
        self.stage = stage
        self.reason = reason


def load_plugin(candidate: Candidate, manager: pluggy.PluginManager) -> Plugin:
    """Return the plugin of ``candidate``, registered with ``manager``.

    What it prints meanwhile goes to stderr, so that it never mixes with a command's output.

    Raises:
        Refusal: it cannot be used, and at which stage that showed.
    """
    with redirect_stdout(sys.stderr):
        return _load(candidate, manager)


def _load(candidate: Candidate, manager: pluggy.PluginManager) -> Plugin:
    module = _import(candidate)
    if manager.is_registered(module):
        raise Refusal("duplicate", f"{manager.get_name(module)} is the same module")
    try:
        manager.register(module, name=candidate.module)
        manager.check_pending()
        return Plugin(
            distribution=candidate.distribution,
            version=candidate.version,
            module=candidate.module,
            hooks=implemented_hooks(module),
            platforms=_ask(manager, module, "get_platforms", PlatformEntry),
            methods=_ask(manager, module, "get_quantization_methods", MethodName),
            replaces=_replaces(module),
            is_core=module.__name__.partition(".")[0] == PROJECT,
        )
    except (pluggy.PluginValidationError, Refusal) as error:
        if manager.has_plugin(candidate.module):
            manager.unregister(name=candidate.module)
        raise error if isinstance(error, Refusal) else Refusal("hooks", str(error)) from error


def _import(candidate: Candidate) -> ModuleType:
    try:
        module = candidate.load()
    except (Exception, SystemExit) as error:
        raise Refusal("import", describe_exception(error)) from error
    fault = find_contract_fault(module)
    if fault is not None:
        raise Refusal("contract", fault)
    assert isinstance(module, ModuleType), "find_contract_fault refuses what is no module"
    if faults := find_hook_faults(module):
        raise Refusal("hooks", "; ".join(faults))
    return module


def _ask(
    manager: pluggy.PluginManager, module: ModuleType, hook: str, kind: type[Row]
) -> tuple[Row, ...]:
    """Return the rows that ``module`` answers to a hook without parameters."""
    for implementation in getattr(manager.hook, hook).get_hookimpls():
        if implementation.plugin is module:
            try:
                rows: Any = implementation.function()
            except Exception as error:
                raise Refusal("hooks", f"{hook}() raised {describe_exception(error)}") from error
            if not isinstance(rows, Sequence) or not all(isinstance(row, kind) for row in rows):
                raise Refusal("hooks", f"{hook}() gave {rows!r}, not a list of {kind.__name__}")
            return tuple(rows)
    return ()


def _replaces(module: ModuleType) -> Mapping[str, str]:
    stated = getattr(module, "REPLACES", {})
    if isinstance(stated, Mapping) and all(
        isinstance(word, str) for pair in stated.items() for word in pair
    ):
        return dict(stated)
    raise Refusal("hooks", f"REPLACES is {stated!r}, not a mapping of names to distributions")
