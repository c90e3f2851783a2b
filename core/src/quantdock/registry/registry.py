"""Registry: the loaded plugins, and the one way in which they are asked.

Hooks are walked one implementation at a time, so that every answer keeps its provenance and one
that raises takes nobody else down.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Iterable
from typing import Any, TypeVar

import pluggy

from quantdock import __version__, hookspecs
from quantdock.errors import PluginLoadError
from quantdock.hookspecs import PROJECT
from quantdock.platform import Platform
from quantdock.registry import builtin
from quantdock.registry.answer import CORE, GENERAL, OWNER, Answer, Answers, Question, settle
from quantdock.registry.loader import Refusal, load_plugin
from quantdock.registry.plugin import Candidate, Failure, Plugin
from quantdock.registry.settings import ONLY, STRICT, Settings
from quantdock.registry.spelling import spell

T = TypeVar("T")

_LOG = logging.getLogger(__name__)
_CORE = Candidate(
    distribution=PROJECT, version=__version__, module=builtin.__name__, load=lambda: builtin
)


class Registry:
    """One set of plugins; made anew when the set changes, never edited."""

    def __init__(
        self,
        candidates: Iterable[Candidate],
        settings: Settings,
        failures: Iterable[Failure] = (),
        excluded: Iterable[str] = (),
    ) -> None:
        self.settings = settings
        self.excluded = tuple(excluded)  # distributions that the settings leave out
        self.memory: dict[Hashable, Any] = {}  # what was computed from these plugins
        self._failures: dict[Failure, None] = {}
        self._plugins: dict[str, Plugin] = {}  # by module, the core last
        self._manager = pluggy.PluginManager(PROJECT)
        self._manager.add_hookspecs(hookspecs)
        for failure in failures:
            self.record(failure)
        for candidate in (*candidates, _CORE):
            self._add(candidate)

    @property
    def plugins(self) -> tuple[Plugin, ...]:
        """Return the plugins that are asked, the core last."""
        return tuple(self._plugins.values())

    @property
    def failures(self) -> tuple[Failure, ...]:
        """Return all that could not be used so far: plugins, and single answers."""
        return tuple(self._failures)

    def suspects(self) -> list[str]:
        """Return a line for each plugin that is not loaded and might have known what was asked."""
        return [
            *(f"a plugin could not be used: {f}" for f in self.failures if f.is_fatal),
            *(f"a plugin is left out by {ONLY}: {name}" for name in self.excluded),
        ]

    def record(self, failure: Failure, cause: BaseException | None = None) -> Failure:
        """Keep ``failure`` and return it.

        Raises:
            PluginLoadError: the strict setting is on.
        """
        if failure not in self._failures:
            self._failures[failure] = None
            level = logging.INFO if failure.stage == "ignored" else logging.WARNING
            _LOG.log(level, "plugin %s", failure)
        if self.settings.strict and failure.stage != "ignored":
            raise PluginLoadError(
                f"The plugin {failure.who} could not be used.",
                why=[failure.reason],
                todo=f"Repair or uninstall it, or unset {STRICT} to go on without it.",
                distribution=failure.distribution,
            ) from cause
        return failure

    def remember(self, key: Hashable, compute: Callable[[], T]) -> T:
        """Return ``compute()``, computed once for these plugins; errors are not remembered."""
        if key not in self.memory:
            self.memory[key] = compute()
        value: T = self.memory[key]
        return value

    def ask(self, hook: str, platform: Platform, **arguments: str) -> Answers[Any]:
        """Return every answer to ``hook``, best rank first, then by distribution.

        None and an empty sequence are no answers. Answers of a plugin that owns only other
        platforms are ignored and recorded.
        """
        given, errors = [], []
        values = {**arguments, "platform": platform}
        asked = f"{hook}({', '.join(map(str, values.values()))})"
        for implementation in getattr(self._manager.hook, hook).get_hookimpls():
            plugin = self._plugins[implementation.plugin_name]
            try:
                value = implementation.function(*(values[n] for n in implementation.argnames))
            except Exception as error:
                errors.append(self.record(plugin.failure("answer", asked, error), error))
                continue
            rank = self.rank(plugin, platform)
            if value is None or value == () or value == []:
                continue
            if rank is None:
                reason = f"{asked} answered for a platform that it does not own"
                self.record(plugin.failure("ignored", reason))
                continue
            given.append(Answer(plugin=plugin, value=value, rank=rank))
        given.sort(key=lambda answer: (answer.rank, spell(answer.plugin.distribution)))
        return Answers(given=tuple(given), errors=tuple(errors))

    def rank(self, plugin: Plugin, platform: Platform) -> int | None:
        """Return the rank of ``plugin`` on ``platform``; None: it owns others only."""
        if plugin.is_core:
            return CORE
        if platform.name in plugin.families and self.owner(platform.name) is plugin:
            return OWNER
        return None if plugin.platforms else GENERAL

    def owner(self, family: str) -> Plugin | None:
        """Return the plugin that owns the platform ``family``, or None.

        Raises:
            PluginConflictError: several do, and nothing says which one counts.
        """
        return self.remember(("owner", family), lambda: self._find_owner(family))

    def _find_owner(self, family: str) -> Plugin | None:
        claims = [
            Answer(plugin=plugin, value=plugin.module, rank=CORE if plugin.is_core else OWNER)
            for plugin in self.plugins
            for entry in plugin.platforms
            if entry.name == family
        ]
        question = Question(text=f"both own the platform {family}", keys=(family,))
        answer = settle(claims, question, self.settings.prefer)
        return answer.plugin if answer else None

    def _add(self, candidate: Candidate) -> None:
        """Load one plugin, or record why not."""
        twin = self._plugins.get(candidate.module)
        try:
            if twin is None:
                self._plugins[candidate.module] = load_plugin(candidate, self._manager)
            elif spell(twin.distribution) != spell(candidate.distribution):
                raise Refusal("duplicate", f"{twin} advertises the same module")
        except Refusal as refusal:
            failure = Failure(
                distribution=candidate.distribution,
                version=candidate.version,
                module=candidate.module,
                stage=refusal.stage,
                reason=refusal.reason,
            )
            self.record(failure, refusal)
