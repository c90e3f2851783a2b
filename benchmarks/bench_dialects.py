"""The demo model in every integer dialect: tokens per second and perplexity, beside plain floats.

Run it with ``python -m benchmarks dialects``. Each dialect is written by ``quantdock convert`` from
the 16-bit model, by round-to-nearest, and loaded from its folder. Models take turns at generating,
round after round, so that other work on the machine slows all of them alike. Peers run where their
packages are installed; else they are left out, and that is said.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from statistics import median
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import nn
from transformers import AutoModelForCausalLM, AutoTokenizer, logging

import quantdock
from benchmarks.harness import machine
from demo.__main__ import PROMPTS, TEXT
from demo.measure import perplexity, tokens_per_second
from demo.models import get_demo_model

ROUNDS = 7
TOKENS = 32
TEXT_TOKENS = 1024
GROUP = 64  # 128 does not divide the width of SmolLM2, 576
# Label -> what convert is asked for. Only what divides the model's layers is written.
WRITTEN: Mapping[str, Mapping[str, Any]] = {
    f"gptq, 4 bits, groups of {GROUP}": {"to": "gptq", "group_size": GROUP},
    "gptq, 8 bits, whole rows": {"to": "gptq", "bits": 8, "group_size": -1},
    f"awq, 4 bits, groups of {GROUP}, zero points": {"to": "awq", "group_size": GROUP},
    f"compressed-tensors W4A16, groups of {GROUP}": {"to": "w4a16", "group_size": GROUP},
    f"compressed-tensors W4A16, groups of {GROUP}, zero points": {
        "to": "w4a16",
        "group_size": GROUP,
        "symmetric": False,
    },
    "compressed-tensors W8A8": {"to": "w8a8"},
    "compressed-tensors W8A16 (int8 weight-only)": {"to": "w8a16"},
    "w8a8_int8": {"to": "w8a8_int8"},
    "compressed-tensors fp8_per_channel": {"to": "fp8_per_channel"},
}


@dataclass(slots=True, kw_only=True)
class Variant:
    """A loaded model and what was measured of it; ``what_runs`` names its kernels."""

    label: str
    model: Any
    what_runs: str
    perplexity: float = 0.0
    rates: list[float] = field(default_factory=list)  # tokens per second, one a round

    @property
    def num_bytes(self) -> int:
        """Return the bytes of all weights, each shared one once."""
        return sum(_bytes_of(parameter) for parameter in self.model.parameters())


def _bytes_of(parameter: Any) -> int:
    """Return the bytes of a parameter; those of a peer's subclass are those of its parts."""
    flatten = getattr(parameter, "__tensor_flatten__", None)
    if flatten is None:
        return int(parameter.numel() * parameter.element_size())
    return sum(_bytes_of(getattr(parameter, name)) for name in flatten()[0])


def ours(label: str, folder: Path, **options: Any) -> Variant:
    """Return the model as QuantDock loads it."""
    model = quantdock.load(folder, device="cpu", **options)
    layers = [layer for layer in model.quantdock_plan.layers if layer.kind == "linear"]
    kernels = dict.fromkeys(layer.kernel or "F.linear" for layer in layers)
    return Variant(
        label=label, model=model, what_runs=f"{', '.join(kernels)}, {model.quantdock_plan.dtype}"
    )


def torchao(folder: Path) -> Variant:
    """Return torchao's int8 weight-only quantization of the model, in its default settings."""
    from torchao.quantization import Int8WeightOnlyConfig, quantize_

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).eval()
    quantize_(
        model,
        Int8WeightOnlyConfig(version=2),
        filter_fn=lambda module, name: isinstance(module, nn.Linear) and name != "lm_head",
    )
    return Variant(label="peer: torchao int8 weight-only", model=model, what_runs="bfloat16")


def quanto(folder: Path) -> Variant:
    """Return optimum-quanto's int8 weight-only quantization of the model."""
    from optimum.quanto import freeze, qint8, quantize

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).eval()
    quantize(model, weights=qint8, exclude="lm_head")
    freeze(model)
    return Variant(label="peer: optimum-quanto qint8 weights", model=model, what_runs="bfloat16")


PEERS: Sequence[Callable[[Path], Variant]] = (torchao, quanto)


def variants(plain: Path, work: Path, console: Console) -> list[Variant]:
    """Return every variant, loaded."""
    loaded = [
        ours("float32", plain, dtype="float32"),
        ours("bfloat16", plain, dtype="bfloat16"),
    ]
    for number, (label, options) in enumerate(WRITTEN.items()):
        quantdock.convert_checkpoint(plain, work / str(number), **options)
        loaded.append(ours(label, work / str(number)))
    for peer in PEERS:
        try:
            loaded.append(peer(plain))
        except ImportError as error:
            console.print(f"{peer.__name__} is left out: {error}", markup=False)
    return loaded


def measure(variants: Sequence[Variant], tokenizer: Any, prompt: str, text: str) -> None:
    """Fill in what the variants come to: perplexity once, generation in rounds."""
    for variant in variants:
        variant.perplexity = perplexity(variant.model, tokenizer, text)
    for _ in range(ROUNDS):
        for variant in variants:
            rate = tokens_per_second(variant.model, tokenizer, prompt, TOKENS)
            variant.rates.append(rate)


def table_of(variants: Sequence[Variant]) -> Table:
    """Return the table, a row a variant."""
    table = Table("variant", "runs in", "weights", "tokens/s", "lowest - highest", "perplexity")
    for variant in variants:
        table.add_row(
            variant.label,
            variant.what_runs,
            f"{variant.num_bytes / 1e6:.0f} MB",
            f"{median(variant.rates):.1f}",
            f"{min(variant.rates):.1f} - {max(variant.rates):.1f}",
            f"{variant.perplexity:.2f}",
        )
    return table


def main() -> None:
    """Print the table; QUANTDOCK_BENCH_THREADS sets the threads (1)."""
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    console = Console(width=150, highlight=False)
    torch.set_num_threads(int(os.environ.get("QUANTDOCK_BENCH_THREADS", "1")))
    plain = get_demo_model()
    tokenizer = AutoTokenizer.from_pretrained(plain)
    ids = tokenizer(TEXT.read_text(encoding="utf-8"), add_special_tokens=False, verbose=False)
    text = str(tokenizer.decode(ids.input_ids[:TEXT_TOKENS]))
    with tempfile.TemporaryDirectory() as work:
        loaded = variants(plain, Path(work), console)
        before = os.getloadavg()[0]
        measure(loaded, tokenizer, PROMPTS[plain.name], text)
        after = os.getloadavg()[0]
    console.print(
        f"{date.today()}, {machine()}; {plain.name}; {ROUNDS} rounds of {TOKENS} tokens; load "
        f"average {before:.1f} before and {after:.1f} after",
        markup=False,
    )
    console.print(table_of(loaded))


if __name__ == "__main__":
    main()
