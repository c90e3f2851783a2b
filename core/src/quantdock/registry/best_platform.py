"""The best platform of this machine: the highest rank whose probe finds a device."""

from __future__ import annotations

import logging
from dataclasses import replace
from itertools import groupby

from quantdock.errors import PlatformError
from quantdock.platform import Absent, Platform
from quantdock.registry.answer import OWNER, Answer, Question, settle
from quantdock.registry.probing import probe_entry
from quantdock.registry.registry import Registry
from quantdock.registry.settings import PLATFORM

_LOG = logging.getLogger(__name__)


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
        why=[*absent, *(f"could not be used: {failure}" for failure in registry.failures)],
        todo="Install the package that brings it, by convention pip install quantdock-FAMILY; "
        "`quantdock plugins` shows what is loaded.",
    )


def _question(present: list[Answer[Platform]], rank: int) -> Question:
    families = tuple(answer.value.name for answer in present)
    return Question(
        text=f"each found a device here, both of rank {rank}",
        keys=families,
        choose=f"{PLATFORM}={' or '.join(families)}",
    )
