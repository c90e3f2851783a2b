"""The xpu plugin keeps the contract."""

from __future__ import annotations

from quantdock.testing import PluginConformance


class TestXpu(PluginConformance):
    """Conformance of quantdock-xpu."""

    plugin = "quantdock_xpu.plugin"
