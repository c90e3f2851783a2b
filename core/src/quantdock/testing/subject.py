"""Subject: the plugin that a conformance class checks, and the platforms it is checked on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar

from quantdock.platform import Platform
from quantdock.registry.platforms import describe_usual, get_platform
from quantdock.registry.plugin import Plugin
from quantdock.registry.registry import Registry
from quantdock.schemes import Scheme
from quantdock.testing.plugins import use_plugins
from quantdock.testing.sample_schemes import SAMPLES


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """The plugin under test, loaded beside the core and nothing else."""

    registry: Registry
    plugin: Plugin

    def platforms(self) -> tuple[Platform, ...]:
        """Return every architecture it describes; without one of its own, the core's platforms."""
        own = tuple(
            get_platform(f"{entry.name}:{arch}")
            for entry in self.plugin.platforms
            for arch in entry.archs
        )
        return own or describe_usual(self.registry)

    def expect_no_failure(self) -> None:
        """Assert that nothing went wrong so far, or say all that did."""
        wrong = [str(failure) for failure in self.registry.failures]
        assert not wrong, "; ".join(wrong)


class Subject:
    """Base of the checks. ``plugin`` is the module; ``schemes`` are tried on its descriptors."""

    plugin: ClassVar[str]
    schemes: ClassVar[tuple[Scheme, ...]] = SAMPLES

    @contextmanager
    def loaded(self) -> Iterator[Loaded]:
        """Load the plugin for the length of a with block; fail with the reason if it does not."""
        with use_plugins(self.plugin) as registry:
            found = next((p for p in registry.plugins if p.module == self.plugin), None)
            reasons = [str(failure) for failure in registry.failures]
            assert found is not None, f"{self.plugin} does not load: {reasons}"
            yield Loaded(registry=registry, plugin=found)
