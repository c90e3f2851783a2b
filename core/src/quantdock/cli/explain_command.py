"""``quantdock explain``: what each layer would run, and why, without loading anything."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console

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


def explain(
    checkpoint: Checkpoint,
    platform: PlatformName = None,
    quantization: Quantization = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the plan as JSON.")] = False,
    exact: Exact = False,
    require: Require = None,
    prefer: Prefer = None,
    ignore: Ignore = None,
    choose: Choose = None,
    kv_cache: KVCache = "auto",
    dtype: Dtype = "auto",
) -> None:
    """Show the plan of CHECKPOINT: each layer's scheme and kernel, and why."""
    from quantdock.kernel import Policy
    from quantdock.plan.planner import explain as make_plan
    from quantdock.plan.render import render

    plan = make_plan(
        checkpoint,
        platform=platform,
        quantization=quantization,
        policy=Policy(exact=exact, require=require, prefer=prefer),
        ignore=ignore or (),
        choices=parse_choices(choose),
        kv_cache=kv_cache,
        dtype=dtype,
    )
    console = Console()
    if as_json:
        console.file.write(plan.to_json() + "\n")
    else:
        render(plan, console)
