"""Looking at this machine: for one platform, and for the best one.

A probe that fails is kept and counts as absent.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from itertools import groupby
from pkgutil import resolve_name

from quantdock.errors import PlatformError
from quantdock.platform import Absent, Platform, PlatformEntry
from quantdock.registry.answer import OWNER, Answer, Question, settle
from quantdock.registry.plugin import Plugin
from quantdock.registry.registry import Registry
from quantdock.registry.settings import PLATFORM

_LOG = logging.getLogger(__name__)


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


def find_best(registry: Registry, device: str | None = None, index: int = 0) -> Platform:
    """Return the platform of the highest rank on this machine, with tensors on ``device``.

    Args:
        device: torch's device type; None: any.
        index: which device of that type.
    Raises:
        PlatformError: there is none.
        PluginConflictError: several have that rank and nothing decides.
    """
    owned = [(plugin, entry) for plugin in registry.plugins for entry in plugin.platforms]
    owned.sort(key=lambda pair: -pair[1].rank)
    absent: list[str] = []
    for rank, level in groupby(owned, key=lambda pair: pair[1].rank):
        present: list[Answer[Platform]] = []
        for plugin, entry in level:
            found = probe_entry(registry, plugin, entry, index)
            if isinstance(found, Absent):
                absent.append(f"{entry.name}: {found.reason}")
            elif device in (None, found.device):
                present.append(Answer(plugin=plugin, value=found, rank=OWNER))
        best = settle(present, _question(present, rank), registry.settings.prefer)
        if best is not None:
            registry.owner(best.value.name)  # raises where two plugins own the family
            _LOG.info("platform %s of %s, by rank %d", best.value, best.plugin, rank)
            return replace(best.value, automatic=True)
    raise PlatformError(
        f"No platform on this machine runs on device {device}:{index}."
        if device
        else "No platform is on this machine.",
        why=[*absent, *registry.suspects()],
        todo="Leave the device out to take the best platform here. One that is missing needs its "
        "package (by convention pip install quantdock-FAMILY) and a PyTorch built for it; "
        "`quantdock plugins` shows what was found.",
    )


def _question(present: list[Answer[Platform]], rank: int) -> Question:
    families = tuple(answer.value.name for answer in present)
    return Question(
        text=f"each found a device here, both of rank {rank}",
        keys=families,
        choose=f"{PLATFORM}={' or '.join(families)}",
    )
