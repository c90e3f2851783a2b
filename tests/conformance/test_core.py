"""The core keeps the contract that it sets for plugins."""

from __future__ import annotations

from quantdock.testing import PluginConformance


class TestCore(PluginConformance):
    """Conformance of the core's own table."""

    plugin = "quantdock.registry.builtin"
