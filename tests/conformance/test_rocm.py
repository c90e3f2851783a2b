"""The rocm plugin keeps the contract."""

from __future__ import annotations

from quantdock.testing import PluginConformance


class TestRocm(PluginConformance):
    """Conformance of quantdock-rocm."""

    plugin = "quantdock_rocm.plugin"
