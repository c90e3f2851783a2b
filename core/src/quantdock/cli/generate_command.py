"""``quantdock generate``: text from a checkpoint."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import track

from quantdock.cli.options import (
    Checkpoint,
    Choose,
    Exact,
    Ignore,
    PlatformName,
    Prefer,
    Quantization,
    Require,
    parse_choices,
)


def generate(
    checkpoint: Checkpoint,
    prompt: Annotated[str, typer.Argument(help="Text to continue.", show_default=False)],
    quantization: Quantization = None,
    device: Annotated[str, typer.Option(help="auto, or a torch device.")] = "auto",
    dtype: Annotated[str, typer.Option(help="auto, float32, bfloat16 or float16.")] = "auto",
    platform: PlatformName = None,
    exact: Exact = False,
    require: Require = None,
    prefer: Prefer = None,
    ignore: Ignore = None,
    choose: Choose = None,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Tokens to add at most.")] = 64,
    chat: Annotated[bool, typer.Option("--chat", help="Use the chat template.")] = False,
    trust_remote_code: Annotated[
        bool, typer.Option("--trust-remote-code", help="Run model code of that folder.")
    ] = False,
) -> None:
    """Load CHECKPOINT and continue PROMPT (greedy)."""
    notes = Console(stderr=True, highlight=False)
    asked = {
        "quantization": quantization,
        "device": device,
        "dtype": dtype,
        "platform": platform,
        "exact": exact,
        "require": require,
        "prefer": prefer,
        "ignore": ignore or (),
        "choices": parse_choices(choose),
        "trust_remote_code": trust_remote_code,
    }
    model = _load(checkpoint, asked, notes)
    count, seconds = _stream(model, checkpoint, prompt, max_new_tokens, chat, trust_remote_code)
    notes.print(f"{count} tokens in {seconds:.1f} s ({count / seconds:.1f} tokens/s)")


def _load(checkpoint: str, asked: dict[str, Any], notes: Console) -> Any:
    """Return the model; say on ``notes`` what it runs and what to beware of."""
    from quantdock.integrations.transformers import load

    start = time.perf_counter()
    model = load(checkpoint, **asked, track=_progress(notes))
    plan = model.quantdock_plan
    notes.print(f"{plan.summary()}; loaded in {time.perf_counter() - start:.1f} s")
    for warning in plan.warnings:
        notes.print(f"[yellow]warning:[/] {warning}")
    return model


def _progress(console: Console) -> Callable[[Iterable[Any]], Iterable[Any]]:
    def bar(items: Iterable[Any]) -> Iterable[Any]:
        return track(items, description="loading", console=console, transient=True)

    return bar


def _stream(
    model: Any, checkpoint: str, prompt: str, max_new_tokens: int, chat: bool, trusted: bool
) -> tuple[int, float]:
    """Print the continuation as it comes; return (new tokens, seconds)."""
    import torch
    from transformers import AutoTokenizer, TextStreamer

    tokenizer = AutoTokenizer.from_pretrained(checkpoint, trust_remote_code=trusted)
    if chat:
        messages = [{"role": "user", "content": prompt}]
        prompt = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    inputs = tokenizer(prompt, return_tensors="pt", add_special_tokens=not chat)
    inputs = inputs.to(model.get_input_embeddings().weight.device)
    streamer = TextStreamer(tokenizer, skip_prompt=chat, skip_special_tokens=True)
    start = time.perf_counter()
    with torch.inference_mode():
        output = model.generate(
            **inputs, max_new_tokens=max_new_tokens, do_sample=False, streamer=streamer
        )
    return output.shape[1] - inputs["input_ids"].shape[1], time.perf_counter() - start
