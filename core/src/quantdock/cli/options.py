"""Options that several commands share, and what their words mean."""

from __future__ import annotations

from typing import Annotated

import typer

from quantdock.errors import ConfigError

Checkpoint = Annotated[
    str,
    typer.Argument(metavar="CHECKPOINT", help="Folder of the checkpoint.", show_default=False),
]
Quantization = Annotated[
    str | None,
    typer.Option(
        "--quantization",
        "-q",
        show_default=False,
        help="Method name; default: what the checkpoint says. `quantdock plugins` lists them.",
    ),
]
PlatformName = Annotated[
    str | None,
    typer.Option(
        "--platform",
        show_default=False,
        help="Platform, or FAMILY:ARCHITECTURE of another machine; default: the best one here.",
    ),
]
Ignore = Annotated[
    list[str] | None,
    typer.Option(
        "--ignore",
        show_default=False,
        help="Pattern of layers that online quantization leaves alone (may be repeated).",
    ),
]
Choose = Annotated[
    list[str] | None,
    typer.Option(
        "--choose",
        show_default=False,
        metavar="PATTERN=NAME",
        help="Another online method for the layers that match (may be repeated).",
    ),
]
KVCache = Annotated[
    str,
    typer.Option(
        "--kv-cache",
        help="Keys and values: auto (as the checkpoint asks), none, fp8, fp8_e5m2, int8, fp4.",
    ),
]
Dtype = Annotated[
    str, typer.Option("--dtype", help="Of activations: auto, float32, bfloat16 or float16.")
]
Exact = Annotated[bool, typer.Option("--exact", help="Refuse to run another scheme.")]
Require = Annotated[
    str | None, typer.Option("--require", show_default=False, help="Kernel to take, or fail.")
]
Prefer = Annotated[
    str | None,
    typer.Option("--prefer", show_default=False, help="Kernel to take where it can run."),
]


def parse_choices(pairs: list[str] | None) -> dict[str, str]:
    """Return pattern -> method name of ``PATTERN=NAME`` words.

    Raises:
        ConfigError: a word has no "=" or no pattern, or two have one pattern.
    """
    choices: dict[str, str] = {}
    for pair in pairs or ():
        pattern, equals, name = pair.rpartition("=")
        if not equals or not pattern:
            raise ConfigError(
                f"--choose {pair!r} has no {'pattern' if equals else repr('=')}.",
                todo="Write it as PATTERN=NAME, such as 'model.layers.3.*=none'.",
            )
        if pattern in choices:
            raise ConfigError(
                f"--choose names the pattern {pattern!r} twice.",
                why=[f"once for {choices[pattern]!r} and once for {name!r}"],
                todo="Name each pattern once.",
            )
        choices[pattern] = name
    return choices
