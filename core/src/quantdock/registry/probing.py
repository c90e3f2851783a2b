"""Looking at this machine for one platform; a probe that fails is kept and counts as absent."""

from __future__ import annotations

from pkgutil import resolve_name

from quantdock.platform import Absent, Platform, PlatformEntry
from quantdock.registry.plugin import Plugin
from quantdock.registry.registry import Registry


def is_of(found: object, entry: PlatformEntry) -> bool:
    """Return whether ``found`` is a platform of the entry's name."""
    return isinstance(found, Platform) and found.name == entry.name


def probe_entry(
    registry: Registry, plugin: Plugin, entry: PlatformEntry, index: int = 0
) -> Platform | Absent:
    """Return what the plugin's probe finds; one that fails counts as absent and is recorded."""

    def look() -> Platform | Absent:
        try:
            found: Platform | Absent = resolve_name(entry.probe)(index)
        except Exception as error:
            failure = plugin.failure("answer", f"probing {entry.name}", error)
            return Absent(reason=registry.record(failure, error).reason)
        if isinstance(found, Absent) or is_of(found, entry):
            return found
        reason = f"probing {entry.name} gave {found!r}, neither such a Platform nor Absent"
        registry.record(plugin.failure("answer", reason))
        return Absent(reason=reason)

    return registry.remember(("probe", entry, index), look)
