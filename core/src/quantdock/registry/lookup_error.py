"""The errors of a lookup: what was asked, what runs here, what exists elsewhere, what to do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from quantdock.errors import MethodLookupError, MethodNotYetError
from quantdock.method_name import MethodName
from quantdock.platform import Platform
from quantdock.registry.meaning import names_elsewhere, runnable_names
from quantdock.registry.name_table import Canonical, all_spellings
from quantdock.registry.plugin import Failure
from quantdock.registry.registry import Registry
from quantdock.registry.settings import PLATFORM
from quantdock.registry.spelling import closest, spell

Error = TypeVar("Error", bound=MethodLookupError)


@dataclass(frozen=True, slots=True)
class Asked:
    """A question that failed: the name as typed, the platform, and who asked."""

    registry: Registry
    name: str
    platform: Platform
    source: str = ""

    @property
    def runnable(self) -> tuple[str, ...]:
        """Return the names that run on the platform."""
        return runnable_names(self.registry, self.platform)

    def lists(self) -> list[str]:
        """Return the two labelled lists: what runs here, and what other platforms run."""
        elsewhere = names_elsewhere(self.registry, self.platform)
        others = [f"{name} ({', '.join(families)})" for name, families in elsewhere.items()]
        return [
            f"runs on {self.platform}: {', '.join(self.runnable) or 'nothing'}",
            f"runs on other platforms only: {', '.join(others) or 'nothing more'}",
        ]

    def origin(self) -> list[str]:
        """Return the line that says who asked, if that is known."""
        return [f"asked for by {self.source}"] if self.source else []


def unknown(asked: Asked) -> MethodLookupError:
    """Return the error for a name that no table has."""
    what = f"There is no quantization method {asked.name!r} on {asked.platform}."
    return _error(MethodLookupError, asked, what, [], _advice(asked))


def _advice(asked: Asked) -> str:
    """Return the platform that runs an unknown name, or the closest spelling, or neither."""
    if not isinstance(asked.name, str) or not asked.name.strip():
        return "Name a method, such as fp8, or 'none'."
    elsewhere = names_elsewhere(asked.registry, asked.platform)
    families = next((elsewhere[name] for name in elsewhere if spell(name) == spell(asked.name)), ())
    if families:
        return f"It runs on {', '.join(families)}: choose that with --platform or {PLATFORM}."
    near = closest(asked.name, asked.runnable) or closest(asked.name, all_spellings(asked.registry))
    return (f"Did you mean {near}? " if near else "") + (
        "If another package brings it, pip install that package; "
        "`quantdock plugins` shows what is loaded."
    )


def closed_out(asked: Asked, name: Canonical) -> MethodLookupError:
    """Return the error for a name outside the closed set of an explicit platform."""
    what = f"{asked.platform} does not run {name.name}."
    families = names_elsewhere(asked.registry, asked.platform).get(name.name, ())
    if name.row is None:
        return unknown(asked)
    if name.row.remedy and not families:
        reason = f"it is not supported elsewhere yet: {name.row.summary}"
        remedy = name.row.remedy
        return _error(MethodNotYetError, asked, what, [reason], remedy, method=name.name)
    if not families:
        return _error(
            MethodLookupError, asked, what, [], "Choose one of the methods listed for it."
        )
    family = "cpu" if "cpu" in families else families[0]
    todo = (
        f"Choose platform {family} (--platform {family}, or {PLATFORM}={family}), "
        f"or a method that {asked.platform} runs."
    )
    return _error(MethodLookupError, asked, what, [], todo)


def not_yet(asked: Asked, row: MethodName) -> MethodNotYetError:
    """Return the error for a name that is known and that nothing here can run yet."""
    families = names_elsewhere(asked.registry, asked.platform).get(row.name, ())
    there = f"It runs on {', '.join(families)}. " if families else ""
    return _error(
        MethodNotYetError,
        asked,
        f"{row.name} is known and not supported yet on {asked.platform}.",
        [f"it is: {row.summary}"],
        there + (row.remedy or ""),
        method=row.name,
    )


def broken(asked: Asked, failures: Sequence[Failure]) -> MethodLookupError:
    """Return the error for a name whose only answers failed, such as a missing library."""
    absent = sorted({failure.missing for failure in failures if failure.missing})
    whole = sorted({failure.distribution for failure in failures})
    return _error(
        MethodLookupError,
        asked,
        f"{asked.name} exists and could not be loaded on {asked.platform}.",
        [str(failure) for failure in failures],
        f"Install what is missing: pip install {' '.join(absent)}"
        if absent
        else f"Repair it: pip install --upgrade --force-reinstall {' '.join(whole)}",
    )


def _error(
    kind: type[Error],
    asked: Asked,
    what: str,
    why: Sequence[str],
    todo: str,
    **facts: str,
) -> Error:
    return kind(
        what,
        why=[*why, *asked.origin(), *asked.lists(), *asked.registry.suspects()],
        todo=todo,
        asked=asked.name,
        runnable=asked.runnable,
        elsewhere=tuple(names_elsewhere(asked.registry, asked.platform)),
        **facts,
    )
