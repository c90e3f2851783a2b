"""Whether a module keeps the plugin contract: its number, its hooks, their parameters."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

from quantdock import hookspecs
from quantdock.hookspecs import CONTRACT, PROJECT
from quantdock.registry.spelling import closest

_MARK = f"{PROJECT}_impl"  # the attribute that the hookimpl marker sets
_NO_DEFAULT = inspect.Parameter.empty

# Hook name -> names of its parameters.
HOOKS: dict[str, tuple[str, ...]] = {
    name: tuple(inspect.signature(spec).parameters)
    for name, spec in vars(hookspecs).items()
    if hasattr(spec, f"{PROJECT}_spec")
}


def find_contract_fault(module: object) -> str | None:
    """Return what is wrong with the contract that ``module`` states, or None."""
    if not isinstance(module, ModuleType):
        return f"the entry point names {type(module).__name__} {module!r}, not a module"
    stated = getattr(module, "CONTRACT", None)
    if stated is None:
        return f"it states no CONTRACT; this QuantDock speaks contract {CONTRACT}"
    if stated != CONTRACT or isinstance(stated, bool):
        return (
            f"it states CONTRACT = {stated!r}; this QuantDock speaks contract {CONTRACT}: "
            "install versions that belong together"
        )
    return None


def find_hook_faults(module: ModuleType) -> tuple[str, ...]:
    """Return everything that is wrong with the hooks of ``module``; empty means it is valid."""
    marked = dict(_marked(module))
    faults = list(_unmarked(module))
    if not marked and not faults:
        faults.append(f"it implements no hook; the hooks are {', '.join(HOOKS)}")
    for attribute, function in marked.items():
        options: dict[str, Any] = getattr(function, _MARK)
        hook = options.get("specname") or attribute
        if hook not in HOOKS:
            near = closest(hook, HOOKS)
            faults.append(
                f"there is no hook {hook!r}; "
                + (f"did you mean {near}?" if near else f"the hooks are {', '.join(HOOKS)}")
            )
        elif options.get("hookwrapper") or options.get("wrapper"):
            faults.append(f"{hook} is a wrapper; hooks give answers and cannot wrap others")
        else:
            faults += _parameter_faults(hook, function)
    return tuple(faults)


def implemented_hooks(module: ModuleType) -> tuple[str, ...]:
    """Return the hooks that a valid ``module`` implements."""
    return tuple(
        sorted(
            getattr(function, _MARK).get("specname") or name for name, function in _marked(module)
        )
    )


def _marked(module: ModuleType) -> Iterator[tuple[str, Callable[..., object]]]:
    for name, value in vars(module).items():
        if inspect.isroutine(value) and isinstance(getattr(value, _MARK, None), dict):
            yield name, value


def _unmarked(module: ModuleType) -> Iterator[str]:
    """Yield a fault for each function that is named like a hook and that pluggy would not see."""
    for name in HOOKS:
        value = vars(module).get(name)
        own = getattr(value, "__module__", None) == module.__name__
        if inspect.isroutine(value) and own and not hasattr(value, _MARK):
            yield f"{name} is not marked with quantdock.hookimpl, so nobody would ask it"


def _parameter_faults(hook: str, function: Callable[..., object]) -> Iterator[str]:
    takes = HOOKS[hook]
    expected = f"{hook} takes ({', '.join(takes)})"
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        if name not in takes:
            yield f"{expected}; its parameter {name!r} is not one of them"
        elif parameter.default is not _NO_DEFAULT:
            yield f"{expected} without defaults; {name!r} has one and would never be passed"
