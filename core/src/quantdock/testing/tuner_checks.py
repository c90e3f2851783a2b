"""Checks of the tuner that a plugin may offer: its class anywhere, what it says on a device."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pkgutil import resolve_name
from unittest import SkipTest

from quantdock.registry.tuners import find_tuner, get_tuner
from quantdock.testing.platform_checks import probe_or_skip
from quantdock.testing.subject import Subject

_TARGET = re.compile(r"[\w.]+:\w+")
_STEPS = ("why_not", "plan", "state")


class TunerChecks(Subject):
    """A tuner's target is a class that can be asked everything; a plugin may have none."""

    def test_tuner_target_exists(self) -> None:
        """The target's module exists; where it can be imported, its class has rows and steps."""
        with self.loaded() as loaded:
            targets = {t for p in loaded.platforms() if (t := find_tuner(p)) is not None}
            for target in targets:
                assert _TARGET.fullmatch(target), f"{target!r} is no module:class"
                module = target.partition(":")[0]
                assert find_spec(module), f"there is no module {module}"
                try:
                    kind = resolve_name(target)
                except ImportError as error:
                    raise SkipTest(f"{target} needs {error.name or error}") from error
                missing = [step for step in _STEPS if not callable(getattr(kind, step, None))]
                assert not missing, f"{target} has no {missing}"
                rows = getattr(kind, "rows", ())
                assert rows and all(m > 0 for m in rows), f"{target} has rows {rows!r}"

    def test_tuner_knows_its_device(self) -> None:
        """On the device it says what is known, and plans nothing for no layers."""
        with self.loaded() as loaded:
            for entry in loaded.plugin.platforms:
                if any(find_tuner(p) for p in loaded.platforms() if p.name == entry.name):
                    tuner = get_tuner(probe_or_skip(entry))
                    assert tuner.state().strip(), f"the tuner of {entry.name} says nothing"
                    run = tuner.plan((), tuner.rows, thorough=False, again=False)
                    assert run.num_cases == 0, f"{run.num_cases} cases of no layers"
