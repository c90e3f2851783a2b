"""From a method name to the config class that it means on a platform."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace

from quantdock.config import QuantizationConfig
from quantdock.errors import MethodLookupError, MethodNotYetError
from quantdock.platform import Platform
from quantdock.registry.current import current
from quantdock.registry.lookup_error import Asked, broken, closed_out, not_yet, unknown
from quantdock.registry.meaning import find_meaning, is_open
from quantdock.registry.name_table import canonical
from quantdock.registry.platforms import get_platform
from quantdock.registry.settings import PLATFORM

STEP_DOWN = "cpu"  # where an automatic choice goes that its platform's set of names excludes


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedMethod:
    """A name, resolved: the config class, where it runs, who gave it, and what to know of it."""

    name: str
    config: type[QuantizationConfig]
    platform: Platform
    distribution: str
    notes: tuple[str, ...] = ()


def get_quantization_config(
    quantization: str, platform: str | Platform | None = None
) -> type[QuantizationConfig]:
    """Return what the method name ``quantization`` means on ``platform``; see get_platform.

    Raises:
        MethodLookupError: no such method runs there; the text lists those that do.
        MethodNotYetError: the name is known, and nothing here can run it yet.
        PluginConflictError: two plugins of one rank answer differently.
    """
    return resolve_method(quantization, platform).config


def resolve_method(
    quantization: str, platform: str | Platform | None = None, *, source: str = ""
) -> ResolvedMethod:
    """Return the same as get_quantization_config, with its provenance.

    An automatic platform whose set of names is closed to this one steps down to the plain CPU; the
    notes say so.

    Args:
        source: who asked, for the error: "config.json: quantization_config".
    Raises: as get_quantization_config.
    """
    registry = current()
    if platform is not None and not isinstance(platform, str | Platform):
        get_platform(platform)
    automatic = platform.automatic if isinstance(platform, Platform) else None
    variable = None if platform else os.environ.get(PLATFORM)
    key = ("method", quantization, platform, automatic, variable)
    known = registry.memory.get(key) if isinstance(quantization, str) else None
    if isinstance(known, ResolvedMethod):
        return known
    here = get_platform(platform)
    found = _resolve(Asked(registry, quantization, here, source), steps_down=here.automatic)
    registry.memory[key] = found
    return found


def _resolve(asked: Asked, *, steps_down: bool = False) -> ResolvedMethod:
    registry, platform = asked.registry, asked.platform
    if not isinstance(asked.name, str) or not asked.name.strip():
        raise unknown(asked)
    name = canonical(registry, asked.name, platform)
    if not is_open(registry, name.name, platform):
        if steps_down and name.row is not None:
            return _step_down(asked, name.name)
        raise closed_out(asked, name)
    meaning = find_meaning(registry, name.name, platform)
    if meaning.config is not None and meaning.plugin is not None:
        notes = [*name.notes, *(f"not taken: {failure}" for failure in meaning.errors)]
        return ResolvedMethod(
            name=name.name,
            config=meaning.config,
            platform=platform,
            distribution=meaning.plugin.distribution,
            notes=tuple(notes),
        )
    if meaning.errors:
        raise broken(asked, meaning.errors)
    raise not_yet(asked, name.row) if name.row and name.row.remedy else unknown(asked)


def _step_down(asked: Asked, name: str) -> ResolvedMethod:
    """Return what ``name`` means on the plain CPU; if nothing, what fails is the first platform."""
    lower = get_platform(STEP_DOWN)
    try:
        found = _resolve(replace(asked, platform=lower))
    except MethodNotYetError:
        raise
    except MethodLookupError:
        raise closed_out(asked, canonical(asked.registry, name, asked.platform)) from None
    note = f"{asked.platform} does not run {name}; stepped down to {lower}"
    return replace(found, notes=(*found.notes, note))
