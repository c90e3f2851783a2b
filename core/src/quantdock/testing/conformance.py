"""PluginConformance: what every plugin must keep, as a test class to inherit.

    from quantdock.testing import PluginConformance


    class TestAcme(PluginConformance):
        plugin = "quantdock_acme.plugin"

It runs on any machine: what needs a device is skipped, with the missing device or feature named.
"""

from __future__ import annotations

from quantdock.testing.kernel_checks import KernelChecks
from quantdock.testing.method_checks import MethodChecks
from quantdock.testing.module_checks import ModuleChecks
from quantdock.testing.numeric_checks import NumericChecks
from quantdock.testing.platform_checks import PlatformChecks
from quantdock.testing.tuner_checks import TunerChecks


class PluginConformance(
    ModuleChecks, PlatformChecks, MethodChecks, KernelChecks, NumericChecks, TunerChecks
):
    """The contract of a plugin; a subclass names its module in ``plugin``."""
