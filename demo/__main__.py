"""``make demo``: one real model, unquantized and in four kinds of fp8, measured side by side.

Run with ``python -m demo [--tokens N] [--text-tokens N]``.
"""

from __future__ import annotations

import gc
import math
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from transformers import AutoTokenizer, logging

import quantdock
from demo.measure import generate_greedily, perplexity
from demo.models import ROOT, get_demo_model
from quantdock.plan.render import render

PROMPTS = {
    "smollm2-135m-instruct": "The three most important things to know about the ocean are",
    "tiny-llama": "And it came to pass",
}
TEXT = ROOT / "demo" / "text.txt"
# What a row of the table is: its label, the checkpoint it loads, the method asked for.
VARIANTS = (
    ("unquantized", "plain", "none"),
    ("fp8_per_tensor, at load", "plain", "fp8_per_tensor"),
    ("fp8_per_channel, at load", "plain", "fp8_per_channel"),
    ("fp8_per_block, at load", "plain", "fp8_per_block"),
    ("fp8 128x128, from its file", "block", None),
)

console = Console(highlight=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What one variant came to."""

    label: str
    text: str
    tokens_per_second: float
    num_bytes: int
    perplexity: float
    load_seconds: float
    plan: Any


def main(
    tokens: Annotated[int, typer.Option(min=1, help="Tokens to generate.")] = 40,
    text_tokens: Annotated[int, typer.Option(min=2, help="Tokens of the perplexity text.")] = 1024,
) -> None:
    """Run every variant, print the comparison, and end with the plan of the last."""
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    plain = get_demo_model()
    with console.status("Converting it to a checkpoint in 128x128-block fp8"):
        block = ROOT / ".cache" / "models" / f"{plain.name}-fp8-block"
        shutil.rmtree(block, ignore_errors=True)
        quantdock.convert_checkpoint(plain, block, "fp8_per_block")
    folders = {"plain": plain, "block": block}
    tokenizer = AutoTokenizer.from_pretrained(plain)
    text = _first_tokens(tokenizer, TEXT.read_text(encoding="utf-8"), text_tokens)
    prompt = PROMPTS[plain.name]
    console.print(f"\nModel {plain.name}; prompt: [italic]{prompt}[/]; text: {TEXT.name}\n")
    rows = []
    for label, kind, quantization in VARIANTS:
        with console.status(label):
            row = _measure(label, folders[kind], quantization, tokenizer, prompt, text, tokens)
        console.print(f"[bold]{label}[/]: {row.text[len(prompt) :].strip()!r}")
        rows.append(row)
    console.print(_table(rows))
    console.print(f"\nThe plan of the last row (`quantdock explain {block.relative_to(ROOT)}`):\n")
    render(rows[-1].plan, console)


def _first_tokens(tokenizer: Any, text: str, count: int) -> str:
    """Return the part of ``text`` that its first ``count`` tokens cover."""
    ids = tokenizer(text, add_special_tokens=False, verbose=False).input_ids[:count]
    return str(tokenizer.decode(ids))


def _measure(
    label: str,
    folder: Path,
    quantization: str | None,
    tokenizer: Any,
    prompt: str,
    text: str,
    tokens: int,
) -> Row:
    start = time.perf_counter()
    model = quantdock.load(folder, quantization=quantization)
    seconds = time.perf_counter() - start
    generated = generate_greedily(model, tokenizer, prompt, tokens)
    row = Row(
        label=label,
        text=generated.text,
        tokens_per_second=generated.tokens_per_second,
        num_bytes=_linear_bytes(model),
        perplexity=perplexity(model, tokenizer, text),
        load_seconds=seconds,
        plan=model.quantdock_plan,
    )
    del model
    gc.collect()
    return row


def _linear_bytes(model: Any) -> int:
    """Return the bytes of all weights, each shared one once."""
    return sum(p.numel() * p.element_size() for p in model.parameters())


def _table(rows: list[Row]) -> Table:
    table = Table(title="Beside the unquantized model", title_justify="left")
    for column in ("variant", "weights", "tokens/s", "perplexity", "load"):
        table.add_column(column, justify="left" if column == "variant" else "right")
    base = rows[0]
    for row in rows:
        share = row.num_bytes / base.num_bytes
        change = row.perplexity - base.perplexity
        speed = row.tokens_per_second / base.tokens_per_second
        table.add_row(
            row.label,
            f"{row.num_bytes / 1e6:.1f} MB ({share:.2f}x)",
            f"{row.tokens_per_second:.1f} ({speed:.2f}x)",
            f"{row.perplexity:.3f} ({change:+.3f})",
            f"{row.load_seconds:.1f} s",
        )
        assert math.isfinite(row.perplexity), f"{row.label} computes no numbers"
    return table


if __name__ == "__main__":
    typer.run(main)
