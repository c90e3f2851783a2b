"""The cuda plugin keeps the contract."""

from __future__ import annotations

from quantdock.testing import PluginConformance


class TestCuda(PluginConformance):
    """Conformance of quantdock-cuda."""

    plugin = "quantdock_cuda.plugin"
