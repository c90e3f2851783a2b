"""``quantdock convert``: a checkpoint quantized on disk, decoded, or moved to another dialect."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from quantdock.cli.options import parse_choices
from quantdock.errors import ConfigError

if TYPE_CHECKING:
    from quantdock.convert.conversion import Conversion, Report

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "ki": 2**10, "mi": 2**20, "gi": 2**30}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmg]i?|)b?", re.IGNORECASE)


Source = Annotated[
    str, typer.Argument(metavar="IN", help="Folder of the checkpoint.", show_default=False)
]
Target = Annotated[
    str, typer.Argument(metavar="OUT", help="Folder to write, a new one.", show_default=False)
]
To = Annotated[
    str,
    typer.Option(
        "--to",
        show_default=False,
        help="fp8_per_tensor, fp8_per_channel or fp8_per_block; mxfp8, mxfp6, mxfp6a8, mxfp4, "
        "mxfp4a4, nvfp4, modelopt (NVFP4) or quark (MXFP4); gptq, awq, w8a8_int8, "
        "compressed-tensors, w4a16, w8a16 or w8a8, by round-to-nearest; none decodes. A quantized "
        "IN moves to gptq, awq, compressed-tensors, w8a8_int8, modelopt or quark with the codes "
        "it has.",
    ),
]
Keep = Annotated[
    list[str] | None,
    typer.Option(
        "--ignore",
        show_default=False,
        help="Pattern of layers to copy as they are (may be repeated).",
    ),
]
Choose = Annotated[
    list[str] | None,
    typer.Option(
        "--choose",
        show_default=False,
        metavar="PATTERN=NAME",
        help="Another scheme for the layers that match (may be repeated).",
    ),
]
Bits = Annotated[
    int | None, typer.Option("--bits", show_default=False, help="Of an integer weight.")
]
GroupSize = Annotated[
    int | None,
    typer.Option(
        "--group-size",
        show_default=False,
        help="Columns of an integer weight that share a scale; -1: all of them.",
    ),
]
Symmetric = Annotated[
    bool | None,
    typer.Option(
        "--symmetric/--asymmetric",
        show_default=False,
        help="Integers without or with zero points (w8a8: of the inputs).",
    ),
]
ShardSize = Annotated[
    str | None,
    typer.Option(
        "--max-shard-size",
        show_default=False,
        help="Of one file of weights, such as 5GB; default: the files of IN.",
    ),
]
Exact = Annotated[
    bool,
    typer.Option(
        "--exact", help="Make fp8 of an IN in other floats only where no value changes by it."
    ),
]
Trust = Annotated[bool, typer.Option("--trust-remote-code", help="Run model code of that folder.")]


def convert(
    source: Source,
    target: Target,
    to: To,
    ignore: Keep = None,
    choose: Choose = None,
    bits: Bits = None,
    group_size: GroupSize = None,
    symmetric: Symmetric = None,
    max_shard_size: ShardSize = None,
    exact: Exact = False,
    trust_remote_code: Trust = False,
) -> None:
    """Write checkpoint IN to the new folder OUT, in the format that --to names."""
    choices = parse_choices(choose)
    most = parse_size(max_shard_size) if max_shard_size is not None else None
    console = Console(stderr=True, highlight=False)
    with console.status("reading headers"):
        from quantdock.integrations.transformers.converting import plan

        conversion = plan(
            source,
            target,
            to,
            ignore=ignore or (),
            choices=choices,
            bits=bits,
            group_size=group_size,
            symmetric=symmetric,
            max_shard_bytes=most,
            exact=exact,
            trust_remote_code=trust_remote_code,
        )
    for warning in conversion.work.warnings:
        console.print("[yellow]warning:[/] ", end="")
        console.print(warning, markup=False, soft_wrap=True)
    _report(_run(conversion, console), console)


def parse_size(text: str) -> int:
    """Return the bytes of a size such as "5GB" or "500 MiB".

    Raises:
        ConfigError: it is no size.
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ConfigError(
            f"--max-shard-size {text!r} is no size.", todo="Write it like 5GB or 500MiB."
        )
    return int(float(match[1]) * _UNITS[match[2].lower()])


def _run(conversion: Conversion, console: Console) -> Report:
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    columns = (
        TextColumn("converting"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    try:
        shown = console.is_terminal
        with Progress(*columns, console=console, transient=True, disable=not shown) as progress:
            task = progress.add_task("", total=conversion.num_bytes)
            return conversion.run(lambda num_bytes: progress.advance(task, num_bytes))
    except KeyboardInterrupt:
        console.print("interrupted; the same command goes on from here", markup=False)
        raise


def _report(report: Report, console: Console) -> None:
    from quantdock.plan.plan import show_bytes

    for note in report.notes:
        console.print(note, markup=False, soft_wrap=True)
    kept = f", {report.num_kept} of them from an earlier run" if report.num_kept else ""
    files = f"{report.num_files} file{'s' if report.num_files > 1 else ''}{kept}"
    sizes = f"{show_bytes(report.bytes_before)} became {show_bytes(report.bytes_after)}"
    console.print(f"{report.num_layers} layers converted; {sizes} in {files}", markup=False)
    Console().print(str(report.target), markup=False, highlight=False, soft_wrap=True)
