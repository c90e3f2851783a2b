"""What a method name means on a platform: the config class that the best-ranked plugin gives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pkgutil import resolve_name

from quantdock.config import QuantizationConfig
from quantdock.errors import PluginConflictError
from quantdock.platform import Platform
from quantdock.registry.answer import Answer, Question, settle
from quantdock.registry.name_table import canonical, canonical_names, find_row, rows_of
from quantdock.registry.offers import dispatch_for
from quantdock.registry.platforms import describe_usual
from quantdock.registry.plugin import Failure, Plugin
from quantdock.registry.registry import Registry
from quantdock.registry.spelling import spell

# Names that no platform can close out.
_ALWAYS_OPEN = frozenset({"none"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Meaning:
    """The config class of a name on a platform, who gave it, and who failed to answer."""

    config: type[QuantizationConfig] | None
    plugin: Plugin | None
    errors: tuple[Failure, ...] = ()


def find_meaning(registry: Registry, name: str, platform: Platform) -> Meaning:
    """Return what ``name``, no alias, means on ``platform``.

    A plugin answers through its hook; where it is silent, the target of its own row counts.

    Raises:
        PluginConflictError: two plugins of one rank give different classes.
    """
    asked = registry.ask("get_quantization_config", platform, quantization=name)
    answers, errors = [], list(asked.errors)
    for answer in asked.given:
        if isinstance(answer.value, type) and issubclass(answer.value, QuantizationConfig):
            answers.append(answer)
        else:
            reason = f"its config for {name} is {answer.value!r}, no QuantizationConfig class"
            errors.append(registry.record(answer.plugin.failure("answer", reason)))
    heard = {answer.plugin.module for answer in asked.given}
    heard |= {error.module for error in errors}
    row = find_row(registry, name, platform)
    if row is not None and row.plugin.module not in heard and row.value.target is not None:
        found = _resolve(registry, row.plugin, row.value.target, name)
        if isinstance(found, Failure):
            errors.append(found)
        else:
            answers.append(Answer(plugin=row.plugin, value=found, rank=row.rank))
    question = Question(text=f"both say what {name} means on {platform}, and differ", keys=(name,))
    best = settle(answers, question, registry.settings.prefer)
    return Meaning(
        config=best.value if best else None,
        plugin=best.plugin if best else None,
        errors=tuple(errors),
    )


def _resolve(
    registry: Registry, plugin: Plugin, target: str, name: str
) -> type[QuantizationConfig] | Failure:
    """Return the class that a row's target names, or the record of why it is none."""
    try:
        found = resolve_name(target)
    except Exception as error:
        failure = plugin.failure("answer", f"importing {target} for {name}", error)
        return registry.record(failure, error)
    if isinstance(found, type) and issubclass(found, QuantizationConfig):
        return found
    reason = f"{target} for {name} is {found!r}, no QuantizationConfig class"
    return registry.record(plugin.failure("answer", reason))


def is_open(registry: Registry, name: str, platform: Platform) -> bool:
    """Return whether ``name``, no alias, is in the set of names that ``platform`` can run.

    A platform without a set of its own takes every name; names that plugins contribute for it
    join its set.
    """
    if platform.builtin_methods is None or name in _ALWAYS_OPEN:
        return True
    closed = {spell(canonical(registry, n, platform).name) for n in platform.builtin_methods}
    return spell(name) in closed or any(
        spell(row.name) == spell(name)
        for plugin in registry.plugins
        if not plugin.is_core and registry.rank(plugin, platform) is not None
        for row in rows_of(plugin)
        if row.is_for(platform)
    )


def runnable_names(registry: Registry, platform: Platform) -> tuple[str, ...]:
    """Return the names that run on ``platform``, aliases left out, sorted."""

    def runs(name: str) -> bool:
        try:
            config = find_meaning(registry, name, platform).config
            if config is None or not is_open(registry, name, platform):
                return False
            return config.runs_with(dispatch_for(platform).kernels)
        except PluginConflictError:
            return False

    return registry.remember(
        ("runnable", platform),
        lambda: tuple(name for name in canonical_names(registry, platform) if runs(name)),
    )


def names_elsewhere(registry: Registry, platform: Platform) -> Mapping[str, tuple[str, ...]]:
    """Return name -> other platforms that run it, for names that do not run on ``platform``."""
    here = set(runnable_names(registry, platform))
    found: dict[str, list[str]] = {}
    for other in describe_usual(registry):
        if other.name != platform.name:
            for name in runnable_names(registry, other):
                if name not in here:
                    found.setdefault(name, []).append(other.name)
    return {name: tuple(sorted(families)) for name, families in sorted(found.items())}
