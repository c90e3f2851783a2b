"""Which plugins are installed: the entry points of group "quantdock", nothing imported yet."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import importlib_metadata
from importlib_metadata import EntryPoint

from quantdock.hookspecs import PROJECT
from quantdock.registry.plugin import Candidate, Failure
from quantdock.registry.settings import ONLY, PREFER, Settings
from quantdock.registry.spelling import spell

GROUP = "quantdock"


@dataclass(slots=True, kw_only=True)
class Discovery:
    """What one look at the installed distributions found."""

    candidates: list[Candidate] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    excluded: list[str] = field(default_factory=list)  # distributions the settings leave out


def discover(settings: Settings) -> Discovery:
    """Return the advertised plugins that ``settings`` allow, in the order of their names."""
    found = Discovery()
    points = sorted(importlib_metadata.entry_points(group=GROUP), key=_order)
    for point in points:
        name, version = _identity(point)
        if settings.only is not None and not settings.only & {spell(point.name), spell(name)}:
            found.excluded.append(name)
            continue
        found.candidates.append(
            Candidate(distribution=name, version=version, module=point.value, load=point.load)
        )
    found.failures.extend(_shadowed_copies(points))
    found.failures.extend(_unknown_words(settings, points))
    return found


def _order(point: EntryPoint) -> tuple[str, str]:
    return _identity(point)[0], point.value


def _identity(point: EntryPoint) -> tuple[str, str]:
    """Return the distribution's name and version; damaged metadata gives what is there."""
    return _field(point.dist, "Name") or point.name, _field(point.dist, "Version") or "unknown"


def _field(distribution: Any, name: str) -> str | None:
    """Return a field of a distribution's metadata; None where it, or the file, is missing."""
    try:
        value: str | None = distribution.metadata.get(name) if distribution else None
    except FileNotFoundError:
        return None
    return value


def _copies(name: str) -> list[tuple[str, str]]:
    """Return (folder, version) of each installed copy, the first on the path first."""
    found = importlib_metadata.distributions(name=name)
    places = ((os.path.realpath(str(d.locate_file(""))), _field(d, "Version")) for d in found)
    return list(dict.fromkeys((folder, str(version)) for folder, version in places))


def _shadowed_copies(points: Iterable[EntryPoint]) -> list[Failure]:
    """Return a failure for each further copy of a distribution; the first on the path is used."""
    failures = []
    for name in sorted({_identity(point)[0] for point in points}):
        copies = _copies(name)
        failures += [
            Failure(
                distribution=name,
                version=version,
                module="",
                stage="duplicate",
                reason=f"this copy in {folder} is hidden by version {copies[0][1]} in "
                f"{copies[0][0]}; uninstall one of them",
            )
            for folder, version in copies[1:]
        ]
    return failures


def _unknown_words(settings: Settings, points: Iterable[EntryPoint]) -> list[Failure]:
    """Return a failure for each word of the settings that names nothing installed."""
    distributions = {spell(_identity(point)[0]) for point in points}
    loadable = distributions | {spell(point.name) for point in points}
    unknown = [(ONLY, word) for word in sorted((settings.only or frozenset()) - loadable)]
    preferable = distributions | {PROJECT}
    unknown += [(PREFER, word) for word in settings.prefer if word not in preferable]
    return [
        Failure(
            distribution=word,
            version="",
            module="",
            stage="setting",
            reason=f"{setting} names it, and no installed distribution advertises such a plugin",
        )
        for setting, word in unknown
    ]
