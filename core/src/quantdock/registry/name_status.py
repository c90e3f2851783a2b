"""What each method name is worth on one platform: the rows of tables for users."""

from __future__ import annotations

from dataclasses import dataclass, replace

from quantdock.errors import MethodLookupError, MethodNotYetError, PluginConflictError
from quantdock.method_name import MethodName
from quantdock.platform import Platform
from quantdock.registry.current import current
from quantdock.registry.lookup import resolve_method
from quantdock.registry.name_table import NameRow, canonical, method_names
from quantdock.registry.platforms import get_platform


@dataclass(frozen=True, slots=True, kw_only=True)
class NameStatus:
    """One name on one platform: whether it runs, in what way or why not, and whose meaning it is.

    ``distribution`` gives the meaning where it runs, else the row.
    """

    name: str
    summary: str
    runs: bool
    status: str
    distribution: str


def name_status(platform: str | Platform | None = None) -> tuple[NameStatus, ...]:
    """Return one row for each method name, in the order of ``method_names``.

    A name that several plugins bring has one row, of the first.
    """
    here = replace(get_platform(platform), automatic=False)
    rows = {row.row.name: row for row in reversed(method_names())}
    return tuple(_status(row, here) for row in reversed(rows.values()))


def _status(row: NameRow, here: Platform) -> NameStatus:
    name, distribution = row.row.name, row.distribution
    try:
        found = resolve_method(name, here)
        named = canonical(current(), name, here).row or row.row
        runs, status, distribution = True, _ways(row.row, named), found.distribution
    except MethodNotYetError:
        runs, status = False, "not yet"
    except MethodLookupError:
        runs, status = False, "not here"
    except PluginConflictError:
        runs, status = False, "two plugins differ"
    return NameStatus(
        name=name,
        summary=row.row.summary,
        runs=runs,
        status=status,
        distribution=distribution,
    )


def _ways(row: MethodName, named: MethodName) -> str:
    """Return in what way a name that runs can be used."""
    if row.alias_of is not None:
        return f"same as {named.name}"
    ways = [
        word for word, on in (("checkpoints", named.serialized), ("at load", named.online)) if on
    ]
    return ", ".join(ways) or "always"
