"""``quantdock generate``: text from a checkpoint."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
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
from quantdock.cli.prompt import Prompt
from quantdock.cli.ranks import joined, read_ranks


def generate(
    checkpoint: Checkpoint,
    prompt: Annotated[
        str, typer.Argument(metavar="PROMPT", help="Text to continue.", show_default=False)
    ],
    quantization: Quantization = None,
    device: Annotated[str, typer.Option(help="auto, or a torch device.")] = "auto",
    dtype: Dtype = "auto",
    platform: PlatformName = None,
    exact: Exact = False,
    require: Require = None,
    prefer: Prefer = None,
    ignore: Ignore = None,
    choose: Choose = None,
    kv_cache: KVCache = "auto",
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Tokens to add at most.")] = 64,
    expert_parallel: Annotated[
        bool, typer.Option("--expert-parallel", help="Ranks hold some experts each, whole.")
    ] = False,
    chat: Annotated[bool, typer.Option("--chat", help="Use the chat template.")] = False,
    trust_remote_code: Annotated[
        bool, typer.Option("--trust-remote-code", help="Run model code of that folder.")
    ] = False,
) -> None:
    """Load CHECKPOINT and continue PROMPT (greedy); under torchrun, divided among its ranks."""
    ranks = read_ranks()
    asked = {
        "quantization": quantization,
        "dtype": dtype,
        "platform": platform,
        "exact": exact,
        "require": require,
        "prefer": prefer,
        "ignore": ignore or (),
        "choices": parse_choices(choose),
        "kv_cache": kv_cache,
        "expert_parallel": expert_parallel,
        "trust_remote_code": trust_remote_code,
    }
    with joined(ranks, device, platform) as place:
        _continue(checkpoint, prompt, asked | place, max_new_tokens, chat, ranks.is_first)


def _continue(
    checkpoint: str,
    prompt: str,
    asked: dict[str, Any],
    max_new_tokens: int,
    chat: bool,
    prints: bool,
) -> None:
    """Load the checkpoint with what was ``asked`` and continue ``prompt``."""
    notes = Console(stderr=True, highlight=False, quiet=not prints)
    words = Prompt(
        folder=Path(checkpoint).expanduser(),
        text=prompt,
        chat=chat,
        trust_remote_code=asked["trust_remote_code"],
    )
    model = _load(checkpoint, asked, notes, words)
    words.require_fit(model)
    if told := words.too_long(model, max_new_tokens):
        notes.print(f"\n[yellow]warning:[/] {told}")
    streamer = _streamer(words.tokenizer, skip_prompt=chat) if prints else None
    count, seconds = _stream(model, words.inputs, max_new_tokens, streamer)
    plural = "" if count == 1 else "s"
    notes.print(f"{count} token{plural} in {seconds:.1f} s ({count / seconds:.1f} tokens/s)")


def _load(checkpoint: str, asked: dict[str, Any], notes: Console, words: Prompt) -> Any:
    """Return the model; say on ``notes`` what it runs and what to beware of.

    The prompt is read when nothing else is known to be wrong, just before the weights are.
    """
    with notes.status("starting") as starting:
        from quantdock.integrations.transformers import load
        from quantdock.plan.render import render_remarks

        start = time.perf_counter()

        def show(modules: Iterable[Any]) -> Iterable[Any]:
            words.read()
            starting.stop()
            return _bar(modules, notes)

        model = load(checkpoint, **asked, track=show)
    plan = model.quantdock_plan
    notes.print(f"{escape(plan.summary())}; loaded in {time.perf_counter() - start:.1f} s")
    render_remarks(plan, notes)
    return model


def _bar(modules: Iterable[Any], notes: Console) -> Iterable[Any]:
    hidden = not notes.is_terminal
    return track(modules, description="loading", console=notes, transient=True, disable=hidden)


def _streamer(tokenizer: Any, *, skip_prompt: bool) -> Any:
    """Return what prints the continuation as it comes."""
    from transformers import TextStreamer

    return TextStreamer(tokenizer, skip_prompt=skip_prompt, skip_special_tokens=True)


def _stream(model: Any, inputs: Any, max_new_tokens: int, streamer: Any) -> tuple[int, float]:
    """Continue ``inputs``, printed by ``streamer`` if any; return (new tokens, seconds)."""
    import torch

    inputs = inputs.to(model.get_input_embeddings().weight.device)
    start = time.perf_counter()
    with torch.inference_mode():
        output = model.generate(
            **inputs, max_new_tokens=max_new_tokens, do_sample=False, streamer=streamer
        )
    return output.shape[1] - inputs["input_ids"].shape[1], time.perf_counter() - start
