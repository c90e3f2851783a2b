"""Checks of kernels and substitutions: their descriptors anywhere, their numbers on a device."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib.util import find_spec
from pkgutil import resolve_name
from unittest import SkipTest

from quantdock.formats import DTYPES
from quantdock.kernel import Kernel, Substitution
from quantdock.platform import Platform
from quantdock.problem import INPUT
from quantdock.testing.subject import Loaded, Subject

_TARGET = re.compile(r"[\w.]+:\w+")
_STEPS = ("prepare", "apply", "restore", "warmup")
_INPUT_STEPS = ("quantize", "silu_mul", "rms_norm")


class KernelChecks(Subject):
    """Every descriptor is sound, and every kernel keeps to its scheme."""

    def test_kernels_are_sound(self) -> None:
        """Names are unique, targets well formed, needed features exist, tolerances are sane."""
        with self.loaded() as loaded:
            for platform, kernels in _everywhere(loaded):
                names = [kernel.name for kernel in kernels]
                assert len(names) == len(set(names)), f"{platform}: two kernels of a name: {names}"
                for kernel in kernels:
                    assert _TARGET.fullmatch(kernel.target), f"{kernel.name}: {kernel.target!r}"
                    assert 0 <= kernel.tolerance < 1, f"{kernel.name}: {kernel.tolerance}"
                    odd = sorted((kernel.dtypes or frozenset()) - set(DTYPES))
                    assert not odd, f"{kernel.name} takes {odd}, which are no dtypes"

    def test_needed_features_exist(self) -> None:
        """Each feature that a kernel needs is one that some architecture has."""
        with self.loaded() as loaded:
            known = frozenset().union(*(p.features for p in loaded.platforms()))
            for _, kernels in _everywhere(loaded):
                for kernel in kernels:
                    assert kernel.requires <= known, (
                        f"{kernel.name} needs {sorted(kernel.requires - known)}, which no "
                        "architecture has"
                    )

    def test_kernels_accept_something(self) -> None:
        """Each kernel accepts one of ``schemes`` at least."""
        with self.loaded() as loaded:
            for _, kernels in _everywhere(loaded):
                for kernel in kernels:
                    known = [s for s in self.schemes if not kernel.why_not_scheme(s)]
                    assert known, f"{kernel.name} accepts none of {len(self.schemes)} schemes"

    def test_kernel_targets_exist(self) -> None:
        """Each target's module exists; where it can be imported, its class has all steps."""
        with self.loaded() as loaded:
            for _, kernels in _everywhere(loaded):
                for kernel in kernels:
                    module = kernel.target.partition(":")[0]
                    assert find_spec(module), f"{kernel.name}: there is no module {module}"
                    try:
                        kind = resolve_name(kernel.target)
                    except ImportError as error:
                        raise SkipTest(f"{kernel.name} needs {error.name or error}") from error
                    steps = _INPUT_STEPS if INPUT in kernel.kinds else _STEPS
                    missing = [step for step in steps if not callable(getattr(kind, step, None))]
                    assert not missing, f"{kernel.target} has no {missing}"

    def test_substitutions_change_something(self) -> None:
        """Each one says why and what it costs, and changes every scheme that it replaces."""
        with self.loaded() as loaded:
            for platform in loaded.platforms():
                for swap in _substitutions(loaded, platform):
                    told = swap.why.strip() and swap.accuracy.strip()
                    assert told, f"{swap.name} does not say why, or what it costs"
                    replaced = [s for s in self.schemes if not swap.source.why_not(s)]
                    assert replaced, f"{swap.name} replaces no scheme"
                    kept = [str(s) for s in replaced if swap.result(s) == s]
                    assert not kept, f"{swap.name} changes nothing in {kept}"

    def test_substitutions_apply_somewhere(self) -> None:
        """Each one applies on some architecture, so none is dead."""
        with self.loaded() as loaded:
            offered = {s: p for p in loaded.platforms() for s in _substitutions(loaded, p)}
            for swap in offered:
                assert any(
                    swap.applies(scheme, platform)
                    for scheme in self.schemes
                    for platform in loaded.platforms()
                ), f"{swap.name} applies nowhere"


def offered(loaded: Loaded, platform: Platform) -> list[Kernel]:
    """Return the kernels that the plugin under test offers for ``platform``."""
    answers = loaded.registry.ask("get_kernels", platform).given
    return [kernel for a in answers if a.plugin is loaded.plugin for kernel in a.value]


def _everywhere(loaded: Loaded) -> Iterator[tuple[Platform, list[Kernel]]]:
    """Yield (platform, kernels of the plugin under test) for each platform."""
    for platform in loaded.platforms():
        yield platform, offered(loaded, platform)


def _substitutions(loaded: Loaded, platform: Platform) -> list[Substitution]:
    answers = loaded.registry.ask("get_substitutions", platform).given
    return [s for a in answers if a.plugin is loaded.plugin for s in a.value]
