"""Checks of the module itself: what importing it costs, its contract number, its hooks."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib import import_module
from types import ModuleType
from unittest import SkipTest

from quantdock.registry.offers import dispatch_for
from quantdock.registry.validation import find_contract_fault, find_hook_faults
from quantdock.testing.subject import Subject

HEAVY = ("torch", "triton", "transformers", "numpy")


class ModuleChecks(Subject):
    """The module is cheap, states the contract and keeps it."""

    def test_import_is_cheap(self) -> None:
        """Importing the module in a fresh process imports no torch, triton, transformers, numpy."""
        code = f"import sys, {self.plugin}\nprint([m for m in {HEAVY} if m in sys.modules])"
        run = subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert run.returncode == 0, run.stderr
        assert run.stdout.strip() == "[]", f"importing {self.plugin} imports {run.stdout.strip()}"

    def test_states_the_contract(self) -> None:
        """The contract number is this QuantDock's, and every hook is one of the contract's."""
        module = import_module(self.plugin)
        fault = find_contract_fault(module)
        assert fault is None and isinstance(module, ModuleType), fault
        faults = find_hook_faults(module)
        assert not faults, "; ".join(faults)

    def test_answers_without_failures(self) -> None:
        """Asking about every platform it describes records no failure of any kind."""
        with self.loaded() as loaded:
            for platform in loaded.platforms():
                dispatch_for(platform)
                for name in ("fp8", "none", "no-such-method"):
                    loaded.registry.ask("get_quantization_config", platform, quantization=name)
            loaded.expect_no_failure()

    def test_is_silent_on_platforms_of_others(self) -> None:
        """A plugin that owns platforms answers for those only."""
        with self.loaded() as loaded:
            if loaded.plugin.is_core or not loaded.plugin.platforms:
                raise SkipTest("the plugin owns no platform of its own")
            other = dispatch_for("cpu:generic").platform
            for name in ("fp8", "mxfp4", "awq"):
                loaded.registry.ask("get_quantization_config", other, quantization=name)
            loaded.expect_no_failure()
