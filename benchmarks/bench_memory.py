"""Memory while a 16-bit checkpoint is quantized at load, beside what it needs at least.

Anonymous memory (pages that no file backs) is read after every module of the model.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

METHODS = ("fp8_per_tensor", "fp8_per_channel", "fp8_per_block", "mxfp8")
MODEL = {
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 12,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "vocab_size": 1024,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def main() -> None:
    """Print one line a method: peak and end beside the quantized size."""
    with tempfile.TemporaryDirectory() as folder:
        _run(folder, "write")
        _run(folder, "write-small")
        print("memory of an online load, in MB: 12 layers of 16.8 M weights, bf16, CPU")
        print(f"{'method':<16} {'bf16':>7} {'fp8':>7} {'layer':>7} {'peak':>7} {'peak/fp8':>9}")
        for method in METHODS:
            print(_run(folder, method).strip())


def _run(folder: str, word: str) -> str:
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.bench_memory", folder, word]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def write_model(folder: Path, **fields: int) -> None:
    """Write a random Llama in bfloat16."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model("llama", **{**MODEL, **fields})
    AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).save_pretrained(folder)


def anonymous_bytes() -> int:
    """Return the bytes of this process that no file backs."""
    text = Path("/proc/self/smaps_rollup").read_text()
    found = re.search(r"Anonymous:\s+(\d+) kB", text)
    assert found is not None, "Linux lists it"
    return int(found[1]) * 1024


def measure(folder: Path, method: str) -> str:
    """Return the line of ``method``; a small load first, so that imports are not counted."""
    import quantdock

    quantdock.load(folder / "small", quantization=method, device="cpu")
    base, peak = anonymous_bytes(), 0

    def watch(items: Iterable[Any]) -> Iterator[Any]:
        nonlocal peak
        for item in items:
            peak = max(peak, anonymous_bytes())
            yield item

    model = quantdock.load(folder, quantization=method, device="cpu", track=watch)
    peak = max(peak, anonymous_bytes()) - base
    layers = model.quantdock_plan.layers
    stored = sum(layer.bytes_stored or 0 for layer in layers)
    held = sum(layer.bytes_memory or 0 for layer in layers)
    largest = max(layer.bytes_stored or 0 for layer in layers)
    cells = (stored, held, largest, peak)
    numbers = " ".join(f"{value / 1e6:7.1f}" for value in cells)
    return f"{method:<16} {numbers} {peak / held:9.2f}"


if __name__ == "__main__":
    if len(sys.argv) != 3:
        main()
    elif sys.argv[2] == "write":
        write_model(Path(sys.argv[1]))
    elif sys.argv[2] == "write-small":
        write_model(Path(sys.argv[1]) / "small", num_hidden_layers=1, hidden_size=256)
    else:
        print(measure(Path(sys.argv[1]), sys.argv[2]))
