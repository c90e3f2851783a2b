"""The registry of this process: loaded when first asked for, once, whoever asks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

from quantdock.platform import PlatformEntry
from quantdock.registry.discovery import discover
from quantdock.registry.plugin import Failure, Plugin
from quantdock.registry.registry import Registry
from quantdock.registry.settings import read_settings

_lock = Lock()
_in_use: list[Registry] = []  # the last one counts; more than one only inside use_registry


def current() -> Registry:
    """Return the registry in use, loading the installed plugins on the first call.

    Raises:
        PluginLoadError: a plugin cannot be used and QUANTDOCK_STRICT_PLUGINS is set.
    """
    if _in_use:
        return _in_use[-1]
    with _lock:
        if not _in_use:
            _in_use.append(load_registry())
        return _in_use[-1]


def load_registry() -> Registry:
    """Return a new registry of the installed plugins, under the environment's settings."""
    settings = read_settings()
    found = discover(settings)
    return Registry(found.candidates, settings, found.failures, found.excluded)


@contextmanager
def use_registry(registry: Registry) -> Iterator[Registry]:
    """Make ``registry`` the one in use for the length of a with block, in every thread."""
    _in_use.append(registry)
    try:
        yield registry
    finally:
        _in_use.remove(registry)


def plugins() -> tuple[Plugin, ...]:
    """Return the plugins in use with what they offer, the core last; the first call loads them."""
    return current().plugins


def failures() -> tuple[Failure, ...]:
    """Return every plugin and every answer that could not be used so far."""
    return current().failures


def platform_entries() -> tuple[PlatformEntry, ...]:
    """Return what plugins say of the platforms they own, the first choice first."""
    entries = [entry for plugin in current().plugins for entry in plugin.platforms]
    return tuple(sorted(entries, key=lambda entry: (-entry.rank, entry.name)))
