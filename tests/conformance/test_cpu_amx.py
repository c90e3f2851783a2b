"""The cpu_amx plugin keeps the contract."""

from __future__ import annotations

from quantdock.testing import PluginConformance


class TestCpuAmx(PluginConformance):
    """Conformance of quantdock-cpu-amx."""

    plugin = "quantdock_cpu_amx.plugin"
