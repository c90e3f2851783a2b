"""The environment variables that the registry reads."""

from __future__ import annotations

import os
from dataclasses import dataclass

from quantdock.registry.spelling import spell

ONLY = "QUANTDOCK_PLUGINS"
STRICT = "QUANTDOCK_STRICT_PLUGINS"
PREFER = "QUANTDOCK_PREFER_PLUGIN"
PLATFORM = "QUANTDOCK_PLATFORM"
KERNEL = "QUANTDOCK_KERNEL"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What the user says of plugins; read once, when they are first loaded."""

    only: frozenset[str] | None = None  # entry points or distributions to load; None: all
    strict: bool = False  # a plugin that cannot be used is an error
    prefer: tuple[str, ...] = ()  # distributions whose answer wins a tie, first one first


def read_settings() -> Settings:
    """Return the settings of this process's environment."""
    only = os.environ.get(ONLY)
    return Settings(
        only=None if only is None else frozenset(_words(only)),
        strict=os.environ.get(STRICT, "").strip().lower() in ("1", "true", "yes", "on"),
        prefer=tuple(_words(os.environ.get(PREFER, ""))),
    )


def _words(text: str) -> list[str]:
    return [spell(word) for word in text.split(",") if word.strip()]
