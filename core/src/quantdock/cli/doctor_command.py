"""``quantdock doctor``: what is wrong with a checkpoint, in the order people debug by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import track

from quantdock.cli.options import (
    Checkpoint,
    Choose,
    Dtype,
    Exact,
    Ignore,
    KVCache,
    PlatformName,
    Prefer,
    Quantization,
    Require,
    parse_choices,
)

Ranks = Annotated[int, typer.Option("--tp", min=1, help="Ranks to divide the layers among.")]
Base = Annotated[
    str | None,
    typer.Option("--base", show_default=False, help="Folder of the 16-bit original."),
]
Layers = Annotated[
    str | None,
    typer.Option("--layers", show_default=False, help="Pattern of layers whose values are read."),
]
Quick = Annotated[bool, typer.Option("--quick", help="Read headers only.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the report as JSON.")]
Trust = Annotated[bool, typer.Option("--trust-remote-code", help="Run model code of that folder.")]


def doctor(
    checkpoint: Checkpoint,
    platform: PlatformName = None,
    quantization: Quantization = None,
    tp: Ranks = 1,
    base: Base = None,
    layers: Layers = None,
    quick: Quick = False,
    as_json: AsJson = False,
    dtype: Dtype = "auto",
    exact: Exact = False,
    require: Require = None,
    prefer: Prefer = None,
    ignore: Ignore = None,
    choose: Choose = None,
    kv_cache: KVCache = "auto",
    trust_remote_code: Trust = False,
) -> None:
    """Examine CHECKPOINT by eight checks; the exit code is 1 if one of them fails."""
    asked = {
        "platform": platform,
        "quantization": quantization,
        "tp": tp,
        "base": base,
        "layers": layers,
        "quick": quick,
        "dtype": dtype,
        "kv_cache": kv_cache,
        "exact": exact,
        "require": require,
        "prefer": prefer,
        "ignore": ignore or (),
        "choices": parse_choices(choose),
        "trust_remote_code": trust_remote_code,
    }
    raise typer.Exit(_examine(checkpoint, asked, as_json))


def _examine(checkpoint: str, asked: dict[str, Any], as_json: bool) -> int:
    """Print the report on a checkpoint, check by check; return the exit code."""
    from quantdock.diagnosis import Outcome
    from quantdock.diagnosis import doctor as examine
    from quantdock.diagnosis.render import render_end, render_outcome

    console = Console(highlight=False)

    def tell(outcome: Outcome) -> None:
        if not as_json:
            render_outcome(outcome, console)

    report = examine(checkpoint, **asked, track=_progress(Console(stderr=True)), on_outcome=tell)
    if as_json:
        console.file.write(report.to_json() + "\n")
    else:
        render_end(report, console)
    return report.exit_code


def _progress(console: Console) -> Callable[[Iterable[Any]], Iterable[Any]]:
    def bar(items: Iterable[Any]) -> Iterable[Any]:
        return track(
            items,
            description="reading",
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )

    return bar
