"""The rows of all plugins for one method name, and the one that counts on a platform."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from quantdock.errors import MethodLookupError
from quantdock.method_name import MethodName
from quantdock.platform import Platform
from quantdock.registry.answer import Answer, Question, settle
from quantdock.registry.current import current
from quantdock.registry.plugin import Plugin
from quantdock.registry.registry import Registry
from quantdock.registry.spelling import spell

_LONGEST_CHAIN = 8  # aliases of aliases; more is a circle


@dataclass(frozen=True, slots=True, kw_only=True)
class NameRow:
    """One row of the table, and the distribution that brings it."""

    row: MethodName
    distribution: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Canonical:
    """The name that a typed one stands for; ``row`` None: no table on this platform has it."""

    name: str
    row: MethodName | None
    plugin: Plugin | None
    notes: tuple[str, ...] = ()


def method_names() -> tuple[NameRow, ...]:
    """Return every row of every plugin, the core's first, each table in its own order."""
    return tuple(
        NameRow(row=row, distribution=plugin.distribution)
        for plugin in reversed(current().plugins)
        for row in plugin.methods
    )


def rows_of(plugin: Plugin) -> Iterator[MethodName]:
    """Yield the plugin's rows; an owner's rows are for its own platforms only."""
    for row in plugin.methods:
        if plugin.platforms and not plugin.is_core:
            own = plugin.families
            yield replace(row, platforms=own if row.platforms is None else own & row.platforms)
        else:
            yield row


def find_row(registry: Registry, name: str, platform: Platform) -> Answer[MethodName] | None:
    """Return the row of ``name`` that counts on ``platform``.

    Raises:
        PluginConflictError: two plugins of one rank bring different rows.
    """
    answers = [
        Answer(plugin=plugin, value=row, rank=rank)
        for plugin in registry.plugins
        for row in rows_of(plugin)
        if spell(row.name) == spell(name)
        and row.is_for(platform)
        and (rank := registry.rank(plugin, platform)) is not None
    ]
    question = Question(text=f"both add the method {name} on {platform}", keys=(name,))
    return settle(answers, question, registry.settings.prefer)


def canonical(registry: Registry, name: str, platform: Platform) -> Canonical:
    """Return what ``name`` stands for on ``platform``, aliases followed.

    Raises:
        MethodLookupError: its aliases go round in a circle.
    """
    notes: list[str] = []
    for _ in range(_LONGEST_CHAIN):
        found = find_row(registry, name, platform)
        if found is None:
            return Canonical(name=spell(name), row=None, plugin=None, notes=tuple(notes))
        row = found.value
        if row.alias_of is None:
            return Canonical(name=row.name, row=row, plugin=found.plugin, notes=tuple(notes))
        notes.append(f"{row.name} is another name of {row.alias_of}")
        name = row.alias_of
    raise MethodLookupError(
        f"The aliases of {name!r} go round in a circle.",
        why=notes,
        todo="Tell the authors of the plugin; `quantdock plugins` names them.",
        asked=name,
        runnable=(),
        elsewhere=(),
    )


def canonical_names(registry: Registry, platform: Platform) -> tuple[str, ...]:
    """Return every name that stands for itself on ``platform``, sorted."""
    return registry.remember(("names", platform), lambda: _canonical_names(registry, platform))


def _canonical_names(registry: Registry, platform: Platform) -> tuple[str, ...]:
    names = {
        row.name
        for plugin in registry.plugins
        for row in rows_of(plugin)
        if row.alias_of is None and row.is_for(platform)
    }
    return tuple(sorted(names))


def all_spellings(registry: Registry) -> tuple[str, ...]:
    """Return every name and alias that any plugin brings, sorted."""
    return tuple(sorted({row.name for plugin in registry.plugins for row in plugin.methods}))
