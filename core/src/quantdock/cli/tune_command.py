"""``quantdock tune``: measure on this device which way to compute each layer is the fastest."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape

from quantdock.cli.options import Ignore, PlatformName, Quantization
from quantdock.errors import ConfigError

if TYPE_CHECKING:
    from rich.table import Table

    from quantdock.diagnosis.case import Options
    from quantdock.platform import Platform
    from quantdock.problem import Problem
    from quantdock.tuner import Measured, Timed, Tuner, TuningRun
    from quantdock.tuning import LayerToTune

_INTERRUPTED = 130  # the exit code after Ctrl-C
_MOST_REMARKS = 10

Checkpoint = Annotated[
    str | None,
    typer.Argument(metavar="CHECKPOINT", help="Folder whose layers are tuned.", show_default=False),
]
Shapes = Annotated[
    str | None,
    typer.Option(
        "--shapes",
        show_default=False,
        metavar="NxK,...",
        help="Layers of these shapes, too: output x input features.",
    ),
]
Rows = Annotated[
    str | None,
    typer.Option(
        "--rows",
        show_default=False,
        metavar="M,...",
        help="Rows of x, that is tokens at once; default: a few from 1 to some thousands.",
    ),
]
Ranks = Annotated[int, typer.Option("--tp", min=1, help="Ranks that divide the layers.")]
Merge = Annotated[
    bool, typer.Option("--merge", help="Queries, keys and values, and gate and up, as one layer.")
]
Thorough = Annotated[
    bool,
    typer.Option("--thorough/--quick", help="Try every way, or those that are probably fast."),
]
Again = Annotated[bool, typer.Option("--again", help="Measure what is in the table already, too.")]


def tune(
    checkpoint: Checkpoint = None,
    shapes: Shapes = None,
    rows: Rows = None,
    platform: PlatformName = None,
    quantization: Quantization = None,
    tp: Ranks = 1,
    merge: Merge = False,
    thorough: Thorough = False,
    again: Again = False,
    ignore: Ignore = None,
) -> None:
    """Measure the ways to compute the layers of CHECKPOINT on this device, and keep the best."""
    console = Console(stderr=True, highlight=False)
    numbers = parse_rows(rows)
    with console.status("reading headers"):
        from quantdock.diagnosis.case import Options
        from quantdock.registry import get_platform
        from quantdock.registry.tuners import get_tuner

        found = get_platform(platform)
        _take_device(platform)
        options = Options(quantization=quantization, platform=found, ignore=ignore or (), tp=tp)
        tuner = get_tuner(found)
        layers = _layers(checkpoint, shapes, options, found, merge)
    wanted = _with_a_choice(layers, tuner, console)
    with console.status("finding out what to measure"):
        problems = [layer.problem for layer in wanted]
        run = tuner.plan(problems, numbers or tuner.rows, thorough=thorough, again=again)
    if run.num_known:
        known = "1 product is" if run.num_known == 1 else f"{run.num_known:,} products are"
        console.print(f"{known} in the table already (--again measures anew)")
    done = _measure(run, console)
    _show(done, Console(highlight=False))
    console.print(escape(tuner.state()), soft_wrap=True)
    if len(done) < run.num_cases:
        raise typer.Exit(_INTERRUPTED)


def _take_device(platform: str | None) -> None:
    """Make the device that ``family:1`` numbers the one that torch takes."""
    from quantdock.registry.settings import PLATFORM

    number = (platform or os.environ.get(PLATFORM, "")).partition(":")[2].strip()
    if number.isdecimal():
        import torch

        torch.accelerator.set_device_index(int(number))


def parse_rows(text: str | None) -> list[int]:
    """Return the numbers of rows that a user writes as ``1,16``; none where nothing is written.

    Raises:
        ConfigError: a word is no number of rows.
    """
    words = [word.strip() for word in (text or "").split(",") if word.strip()]
    wrong = [word for word in words if not word.isdecimal() or int(word) < 1]
    if wrong:
        raise ConfigError(
            f"--rows {wrong[0]!r} is no number of rows.", todo="Write it like 1,16,512."
        )
    return sorted({int(word) for word in words})


def _layers(
    checkpoint: str | None,
    shapes: str | None,
    options: Options,
    platform: Platform,
    merge: bool,
) -> tuple[LayerToTune, ...]:
    """Return the layers of the checkpoint, and of the shapes in the same schemes."""
    from quantdock.tuning.layers import (
        METHODS,
        layers_of_checkpoint,
        layers_of_schemes,
        layers_of_shapes,
        parse_shapes,
    )

    sizes = parse_shapes(shapes or "")
    if checkpoint is None:
        if not sizes:
            raise ConfigError(
                "There are no layers to tune.", todo="Name a checkpoint, or give --shapes NxK."
            )
        methods = (options.quantization,) if options.quantization else METHODS
        return layers_of_shapes(sizes, platform, methods)
    stored = layers_of_checkpoint(checkpoint, options, merge=merge)
    schemes = list(dict.fromkeys(layer.problem.scheme for layer in stored))
    return (*stored, *layers_of_schemes(sizes, platform, schemes))


def _with_a_choice(
    layers: Sequence[LayerToTune], tuner: Tuner, console: Console
) -> list[LayerToTune]:
    """Return the layers that can be tuned; say how many cannot, and why."""
    reasons = {layer: tuner.why_not(layer.kernel, layer.problem) for layer in layers}
    counts: Counter[str] = Counter()
    for layer, reason in reasons.items():
        if reason:
            counts[reason] += layer.count
    for reason, count in counts.items():
        who = "1 layer has" if count == 1 else f"{count:,} layers have"
        console.print(f"{who} no choice: {escape(reason)}", soft_wrap=True)
    return [layer for layer, reason in reasons.items() if not reason]


def _measure(run: TuningRun, console: Console) -> list[Measured]:
    """Return what was measured, all of it stored; an interruption keeps what is done."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
    from rich.progress import TimeRemainingColumn as Remaining

    done: list[Measured] = []
    columns = (TextColumn("tuning"), BarColumn(), MofNCompleteColumn(), Remaining())
    shown = console.is_terminal
    with Progress(*columns, console=console, transient=True, disable=not shown) as progress:
        task = progress.add_task("", total=run.num_steps)
        try:
            for measured in run.measure(lambda count: progress.advance(task, count)):
                done.append(measured)
        except KeyboardInterrupt:
            progress.stop()
            told = f"of {run.num_cases:,} products {len(done):,} are measured and kept"
            console.print(f"interrupted: {told}; the same command goes on from here")
    return done


def _show(measured: Sequence[Measured], console: Console) -> None:
    """Print for each layer what was taken until now, and what will be; then what failed."""
    layers: dict[Problem, list[Measured]] = {}
    for case in measured:
        layers.setdefault(case.problem, []).append(case)
    for problem, cases in layers.items():
        console.print(_table(f"{problem.n} x {problem.k}, {problem.scheme}", cases))
    remarks = list(dict.fromkeys(remark for case in measured for remark in case.remarks))
    for remark in remarks[:_MOST_REMARKS]:
        console.print(f"not measured: {escape(remark)}", soft_wrap=True)
    if len(remarks) > _MOST_REMARKS:
        console.print(f"not measured: {len(remarks) - _MOST_REMARKS:,} more")


def _table(title: str, cases: Sequence[Measured]) -> Table:
    from rich.table import Table

    table = Table(title=escape(title), title_justify="left")
    for name in ("rows", "until now", "us", "from now on", "us", "faster"):
        table.add_column(name, justify="right" if name in ("rows", "us", "faster") else "left")
    for case in cases:
        before, after = case.before, case.after
        faster = f"{before.us / after.us:.2f} x" if before and after else ""
        new = _told(after)
        if before and after and before.way == after.way:
            new = "the same", new[1]
        table.add_row(*map(escape, (str(case.rows), *_told(before), *new, faster)))
    return table


def _told(timed: Timed | None) -> tuple[str, str]:
    return ("", "") if timed is None else (timed.way, f"{timed.us:.1f}")
