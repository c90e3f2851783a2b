"""From a name to a platform: probed on this machine, or described for planning."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pkgutil import resolve_name

from quantdock.errors import PlatformError, PluginConflictError
from quantdock.platform import Platform, PlatformEntry
from quantdock.registry.current import current, platform_entries
from quantdock.registry.plugin import Plugin
from quantdock.registry.probing import find_best, is_of, probe_entry
from quantdock.registry.registry import Registry
from quantdock.registry.settings import PLATFORM
from quantdock.registry.spelling import closest, spell


def get_platform(name: str | Platform | None = None) -> Platform:
    """Return the platform that ``name`` means.

    None is QUANTDOCK_PLATFORM, else the best one on this machine. "family" looks at this machine,
    "family:1" at its second device, "family:arch" describes one without looking.

    Raises:
        PlatformError: no such family or architecture, or it is not on this machine.
        PluginConflictError: two plugins own it, or two are equally good and nothing decides.
    """
    if isinstance(name, Platform):
        return name
    if name is not None and not isinstance(name, str):
        raise PlatformError(
            f"platform={name!r:.60} is neither a name nor a Platform.",
            why=[f"a {type(name).__name__} was given"],
            todo="Name a platform, such as 'cpu' or 'cpu:avx2', or leave it out for the best one.",
        )
    registry = current()
    asked = name or _set_platform()
    if not asked:
        return registry.remember("best platform", lambda: find_best(registry))
    try:
        return registry.remember(("platform", asked), lambda: _named(registry, asked))
    except PlatformError as error:
        if name:
            raise
        why = [*error.why, f"{PLATFORM}={asked} asks for it"]
        raise PlatformError(error.what, why=why, todo=error.todo, **error.facts) from error


def platform_for_device(device: object = "auto", name: str | Platform | None = None) -> Platform:
    """Return the platform that runs tensors of ``device``: a torch device or its name, or "auto".

    A platform that is named, or set by QUANTDOCK_PLATFORM, must be one of that device.

    Raises:
        PlatformError: as get_platform, or the two do not fit.
    """
    word = str(device)
    kind, _, index = word.partition(":")
    if word == "auto":
        return get_platform(name)
    if not name and not _set_platform():
        registry = current()
        return registry.remember(
            ("best platform", word), lambda: find_best(registry, kind, int(index or 0))
        )
    found = get_platform(name)
    if found.device != kind:
        raise PlatformError(
            f"The platform {found} does not run on device {word}.",
            why=[f"its tensors live on {found.device}"],
            todo=f"Drop one of the two, or use device={found.device!r}.",
        )
    return found


def _set_platform() -> str:
    """Return what QUANTDOCK_PLATFORM says; "" where it is not set, or blank."""
    return os.environ.get(PLATFORM, "").strip()


def describe_usual(registry: Registry) -> tuple[Platform, ...]:
    """Return every family at its usual architecture; one whose description fails is left out."""
    described = []
    for plugin in registry.plugins:
        for entry in plugin.platforms:
            try:
                if registry.owner(entry.name) is plugin:
                    described.append(_described(registry, plugin, entry, entry.archs[0]))
            except (PlatformError, PluginConflictError):
                continue
    return tuple(described)


def _named(registry: Registry, asked: str) -> Platform:
    family, _, arch = asked.strip().partition(":")
    plugin, entry = _entry(registry, family, asked)
    known = next((a for a in entry.archs if spell(a) == spell(arch)), arch)
    if arch and known not in entry.archs and arch.isdecimal():
        arch, index = "", int(arch)
    else:
        index = 0
    if arch:
        return _described(registry, plugin, entry, known)
    found = probe_entry(registry, plugin, entry, index)
    if isinstance(found, Platform):
        return found
    raise PlatformError(
        f"There is no {entry.name} device {index} on this machine.",
        why=[f"{plugin}: {found.reason}"],
        todo=f"To plan for one that is elsewhere name its architecture, such as "
        f"{entry.name}:{entry.archs[0]}; known: {', '.join(entry.archs)}.",
    )


def _entry(registry: Registry, family: str, asked: str) -> tuple[Plugin, PlatformEntry]:
    """Return the entry of ``family`` and its owner, or raise the error that says what exists."""
    entries = platform_entries()
    name = next((e.name for e in entries if spell(e.name) == spell(family)), None)
    owner = registry.owner(name) if name else None
    if owner is not None:
        return owner, next(entry for entry in owner.platforms if entry.name == name)
    known = sorted({entry.name for entry in entries})
    raise PlatformError(
        f"No installed plugin brings the platform {asked!r}.",
        why=[f"installed: {', '.join(known)}", *registry.suspects()],
        todo=_advice(entries, family),
    )


def _advice(entries: Sequence[PlatformEntry], family: str) -> str:
    """Return what to write instead of an unknown ``family``, or what to install."""
    owners = [entry.name for entry in entries if spell(family) in map(spell, entry.archs)]
    if owners:
        return f"Write {' or '.join(f'{owner}:{family}' for owner in owners)}."
    if not family.strip():
        return "Name a platform, or a platform and its architecture, such as cpu:avx2."
    near = closest(family, [entry.name for entry in entries])
    return (
        (f"Did you mean {near}? " if near else "")
        + f"A package brings each platform, by convention pip install quantdock-{spell(family)}; "
        "`quantdock plugins` shows what is loaded."
    )


def _described(registry: Registry, plugin: Plugin, entry: PlatformEntry, arch: str) -> Platform:
    try:
        found: Platform = resolve_name(entry.describe)(arch)
    except PlatformError:
        raise
    except Exception as error:
        failure = plugin.failure("answer", f"describing {entry.name}:{arch}", error)
        registry.record(failure, error)
        raise PlatformError(
            f"{entry.name}:{arch} cannot be described.",
            why=[str(failure)],
            todo=f"Update {plugin.distribution}, or tell its authors.",
        ) from error
    if not is_of(found, entry):
        raise PlatformError(
            f"{entry.name}:{arch} cannot be described.",
            why=[f"{plugin}: {entry.describe} gave {found!r}, no Platform of that name"],
            todo=f"Update {plugin.distribution}, or tell its authors.",
        )
    return replace(found, described=True)
