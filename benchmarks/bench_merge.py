"""Merged stores beside layers of their own: time of whole models, kernel calls, memory, load time.

Both models take turns, so that a busy machine slows both alike; logits must be the same bits.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any
from unittest.mock import patch

import torch

import quantdock
from benchmarks.bench_memory import write_model
from benchmarks.harness import machine
from quantdock.kernels.scaled_linear import ScaledLinear

METHODS = ("fp8_per_tensor", "fp8_per_block")
MODELS = {
    "30 layers, width 576": {
        "num_hidden_layers": 30,
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
    },
    "4 layers, width 2048": {
        "num_hidden_layers": 4,
        "hidden_size": 2048,
        "intermediate_size": 5632,
        "num_attention_heads": 32,
        "num_key_value_heads": 4,
    },
}
REPEATS: Mapping[int, int] = {1: 40, 8: 20, 128: 8}  # tokens -> forwards of each model


def main() -> None:
    """Print a row for each model and method; apart and merged stand side by side."""
    torch.set_num_threads(1)
    print(machine())
    for name, fields in MODELS.items():
        with tempfile.TemporaryDirectory() as folder:
            write_model(Path(folder), **fields)
            for method in METHODS:
                print(f"{name:<21} {method:<15} {_row(folder, method)}")


@torch.no_grad()
def _row(folder: str, method: str) -> str:
    loaded = [_load(folder, method, merge) for merge in (False, True)]
    models = [model for model, _ in loaded]
    ids = torch.arange(3, 3 + max(REPEATS))[None]
    if not torch.equal(*(model(ids).logits for model in models)):
        raise ValueError("merging changed the logits")
    calls = [_calls(model, ids[:, :1]) for model in models]
    cells = [f"calls {calls[0]} {calls[1]}"]
    for count, repeats in REPEATS.items():
        apart, merged = _times(models, ids[:, :count], repeats)
        cells.append(f"{count} tokens {apart * 1e3:.0f} {merged * 1e3:.0f} ms")
    held = [model.quantdock_plan.totals.bytes_memory for model in models]
    cells.append(f"memory {held[1] / held[0] - 1:+.1%}")
    cells.append(f"load {loaded[0][1]:.1f} {loaded[1][1]:.1f} s")
    return "; ".join(cells)


def _load(folder: str, method: str, merge: bool) -> tuple[Any, float]:
    """Return the model and the shorter of two load times."""
    seconds = []
    for _ in range(2):
        start = time.perf_counter()
        model = quantdock.load(folder, method, device="cpu", merge=merge)
        seconds.append(time.perf_counter() - start)
    return model, min(seconds)


def _calls(model: Any, ids: torch.Tensor) -> int:
    with patch.object(ScaledLinear, "apply", autospec=True, side_effect=ScaledLinear.apply) as run:
        model(ids)
    return run.call_count


def _times(models: list[Any], ids: torch.Tensor, repeats: int) -> list[float]:
    """Return the median seconds of a forward, for each model."""
    seconds: list[list[float]] = [[] for _ in models]
    for _ in range(repeats):
        for model, taken in zip(models, seconds, strict=True):
            start = time.perf_counter()
            model(ids, use_cache=False)
            taken.append(time.perf_counter() - start)
    return [median(taken) for taken in seconds]


if __name__ == "__main__":
    main()
