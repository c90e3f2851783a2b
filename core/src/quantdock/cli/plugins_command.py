"""``quantdock plugins``: what is installed, what failed, which platforms and names there are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from quantdock.cli.options import PlatformName

if TYPE_CHECKING:
    from quantdock.platform import Platform


def plugins(
    platform: PlatformName = None,
    names: Annotated[
        bool, typer.Option("--names", help="List known names that are not supported yet, too.")
    ] = False,
) -> None:
    """Show plugins, platforms, and the method names that run on a platform."""
    from quantdock.registry import get_platform

    console = Console(highlight=False)
    console.print(_plugin_table())
    platforms = _platform_table()
    for failure in _failures():  # probing adds to them
        console.print("[yellow]not used:[/] ", end="")
        console.print(failure, markup=False, soft_wrap=True)
    console.print(platforms)
    console.print(_name_table(get_platform(platform), everything=names))


def _plugin_table() -> Table:
    from quantdock.registry import plugins as loaded

    table = _table("Plugins", "distribution", "version", "module", "hooks")
    for plugin in loaded():
        hooks = ", ".join(hook.removeprefix("get_") for hook in plugin.hooks)
        table.add_row(*map(escape, (plugin.distribution, plugin.version, plugin.module, hooks)))
    return table


def _failures() -> list[str]:
    from quantdock.registry import failures

    return [f"{f.distribution} {f.version} ({f.stage}): {f.reason}" for f in failures()]


def _platform_table() -> Table:
    from quantdock.errors import QuantDockError
    from quantdock.registry import get_platform, platform_entries

    best = _chosen_here()
    table = _table("Platforms", "platform", "on this machine", "can be described")
    for entry in platform_entries():
        try:
            found = str(get_platform(entry.name))
            status = f"{found} (chosen)" if found == best else found
        except QuantDockError as error:
            status = "; ".join(error.why) or error.what
        table.add_row(*map(escape, (entry.name, status, ", ".join(entry.archs))))
    return table


def _chosen_here() -> str:
    """Return the platform that is taken where none is named; "" where that is an error."""
    from quantdock.errors import QuantDockError
    from quantdock.registry import get_platform

    try:
        return str(get_platform())
    except QuantDockError:
        return ""


def _name_table(platform: Platform, *, everything: bool) -> Table:
    from quantdock.registry import name_status

    table = _table(f"Method names on {platform}", "name", "status", "what it is")
    for row in name_status(platform):
        if row.runs or everything:
            table.add_row(*map(escape, (row.name, row.status, row.summary)))
    return table


def _table(title: str, name: str, *columns: str) -> Table:
    """Return a table whose words are all there, in a narrow terminal too: people type them."""
    table = Table(title=title, title_justify="left")
    table.add_column(name, no_wrap=True)
    for column in columns:
        table.add_column(column, overflow="fold")
    return table
