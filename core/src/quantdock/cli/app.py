"""The ``quantdock`` command and how its errors look."""

from __future__ import annotations

import logging
import os
import signal
import sys
import traceback
import warnings
from collections.abc import Sequence
from io import TextIOWrapper
from typing import Annotated, NoReturn

import typer
from rich.console import Console

from quantdock import __version__
from quantdock.cli.convert_command import convert
from quantdock.cli.doctor_command import doctor
from quantdock.cli.explain_command import explain
from quantdock.cli.generate_command import generate
from quantdock.cli.plugins_command import plugins
from quantdock.cli.ranks import read_size
from quantdock.cli.tune_command import tune
from quantdock.errors import QuantDockError

app = typer.Typer(
    name="quantdock",
    help="Run quantized checkpoints on the device you have, and see why each layer runs so.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command()(generate)
app.command()(explain)
app.command()(convert)
app.command()(doctor)
app.command()(tune)
app.command()(plugins)


def _print_version(asked: bool) -> None:
    if asked:
        Console().print(__version__, highlight=False)
        raise typer.Exit


@app.callback()
def _options(
    debug: Annotated[bool, typer.Option(help="Show the traceback of an error.")] = False,
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version.", callback=_print_version, is_eager=True
        ),
    ] = False,
) -> None:
    """Hold the options every command takes; ``main`` has already read --debug."""


def main() -> None:
    """Run the command line; every error ends in one paragraph and a non-zero code."""
    arguments = sys.argv[1:]
    debug = "--debug" in arguments
    if not debug:
        _quiet_libraries()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # a terminal may lack letters that a model writes
            stream.reconfigure(errors="replace")
    interrupts = _noted_interrupts()
    code = run([a for a in arguments if a != "--debug"], debug=debug, interrupts=interrupts)
    if read_size() > 1:
        _leave(code)
    sys.exit(code)


def _leave(code: int) -> NoReturn:
    """End one of several ranks at once: in the usual teardown threads of torch may abort it."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def run(arguments: list[str], *, debug: bool = False, interrupts: Sequence[int] = ()) -> int:
    """Return the exit code of one command line: 0 done, 1 failed, 2 wrong arguments.

    An error after one of ``interrupts`` (Ctrl-C) is its doing: 130, and nothing is said.
    """
    try:
        app(arguments, standalone_mode=True)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except KeyboardInterrupt:
        return 130
    except QuantDockError as error:
        _report(str(error), debug)
    except Exception as error:
        if interrupts:
            return 130
        _report(_unforeseen(error), debug)
    return 1


def _noted_interrupts() -> list[int]:
    """Return a list that gets an entry at each Ctrl-C, which still is a KeyboardInterrupt.

    Libraries that are being imported may swallow that and then fail on what is half there.
    """
    noted: list[int] = []

    def stop(number: int, frame: object) -> None:
        noted.append(number)
        raise KeyboardInterrupt

    signal.signal(signal.SIGINT, stop)
    return noted


def _unforeseen(error: Exception) -> str:
    if isinstance(error, OSError) and error.errno is not None:  # a full disk, a closed door
        return f"The system refuses: {error}."
    from quantdock.registry import plugins
    from quantdock.registry.blame import blame

    where, fault = blame(error, plugins())
    lines = [f"Unexpected {type(error).__name__}: {error}", *([f"  {where}"] if where else [])]
    return "\n".join([*lines, f"{fault}; run again with --debug and report it."])


def _report(text: str, debug: bool) -> None:
    console = Console(stderr=True, highlight=False)
    if debug:
        console.print(traceback.format_exc(), markup=False)
    console.print("[bold red]error:[/] ", end="")
    console.print(text, markup=False, soft_wrap=True)


def _quiet_libraries() -> None:
    """Keep out of the output what other libraries warn of, and what a plan's notes say already."""
    warnings.filterwarnings("ignore")
    logging.getLogger("transformers").setLevel(logging.ERROR)
    logging.getLogger("quantdock.configs").setLevel(logging.ERROR)
    told = logging.StreamHandler()
    told.setFormatter(logging.Formatter("warning: %(message)s"))
    logging.getLogger("quantdock").addHandler(told)
