"""For authors of plugins: the conformance suite to inherit, and plugins made for a test."""

from quantdock.testing.conformance import PluginConformance
from quantdock.testing.plugins import advertise, make_plugin, use_plugins

__all__ = ["PluginConformance", "advertise", "make_plugin", "use_plugins"]
