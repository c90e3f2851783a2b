"""The NPU plugin keeps the contract."""

from __future__ import annotations

from quantdock.testing import PluginConformance


class TestNpu(PluginConformance):
    """Conformance of quantdock-npu."""

    plugin = "quantdock_npu.plugin"
