"""Plugins, those that load and those that do not: who said what, from which distribution."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from quantdock.errors import QuantDockError
from quantdock.method_name import MethodName
from quantdock.platform import PlatformEntry


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A module that some distribution advertises; ``load`` imports it."""

    distribution: str
    version: str
    module: str
    load: Callable[[], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plugin:
    """A module whose hooks are asked, and what it offers.

    ``replaces`` maps a method name or a platform to the distribution whose answer this plugin
    takes the place of; the module states it as ``REPLACES``.
    """

    distribution: str
    version: str
    module: str
    hooks: tuple[str, ...]  # the hooks it implements
    platforms: tuple[PlatformEntry, ...] = ()  # those it owns
    methods: tuple[MethodName, ...] = ()  # the names it adds
    replaces: Mapping[str, str] = field(default_factory=dict, hash=False)
    is_core: bool = False

    @property
    def families(self) -> frozenset[str]:
        """Return the names of the platforms it owns."""
        return frozenset(entry.name for entry in self.platforms)

    def failure(self, stage: str, reason: str, error: BaseException | None = None) -> Failure:
        """Return the record that one of its answers was not taken; ``error`` is what it raised."""
        return Failure(
            distribution=self.distribution,
            version=self.version,
            module=self.module,
            stage=stage,
            reason=f"{reason} raised {describe_exception(error)}" if error else reason,
            missing=self._missing_module(error),
        )

    def _missing_module(self, error: BaseException | None) -> str | None:
        """Return the top-level module, not its own, whose absence ``error`` is; else None."""
        if not isinstance(error, ModuleNotFoundError) or not error.name:
            return None
        root = error.name.partition(".")[0]
        return None if root == self.module.partition(".")[0] else root

    def __str__(self) -> str:
        return f"{self.distribution} {self.version}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Something of a plugin that could not be used; it is kept, shown, and never fatal by itself.

    ``stage`` is one of import, contract, hooks, duplicate, setting (the plugin is not loaded), or
    answer, ignored (it is loaded, and one of its answers was not taken).
    """

    distribution: str
    version: str
    module: str
    stage: str
    reason: str
    missing: str | None = None  # the top-level module that could not be imported

    @property
    def is_fatal(self) -> bool:
        """Return whether the plugin as a whole is not used."""
        return self.stage not in ("answer", "ignored")

    @property
    def who(self) -> str:
        """Return distribution, version and module, as far as they are known."""
        module = f"({self.module})" if self.module else ""
        return " ".join(filter(None, (self.distribution, self.version, module)))

    def __str__(self) -> str:
        return f"{self.who}: {self.reason}"


def describe_exception(error: BaseException) -> str:
    """Return "Type: text" on one line."""
    text = str(error)
    if isinstance(error, QuantDockError) and error.why:
        text = f"{error.what} {'; '.join(error.why)}. {error.todo}"
    text = " ".join(text.split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
