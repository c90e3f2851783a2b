"""How long ``quantdock.explain`` takes on 100,000 tensors, beside starting Python.

Run it with ``python -m benchmarks.bench_explain``. The time includes starting the process.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from rich.console import Console

from tests.sparse_files import LLAMA_CONFIG, deepseek, write_checkpoint

LAYERS, EXPERTS, SHARDS = 61, 271, 50
RUNS = 5
EXPLAIN = """
import quantdock, sys
plan = quantdock.explain({folder!r}, platform="cpu:generic")
assert plan.totals.layers > 40_000 and "torch" not in sys.modules
"""


def seconds(code: str) -> float:
    """Return the median wall time of running ``code`` in a fresh process, once warm."""
    times = []
    for _ in range(RUNS + 1):
        start = time.perf_counter()
        subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
        times.append(time.perf_counter() - start)
    return median(times[1:])


def main() -> None:
    """Print the time, and its ratio to ``python -c pass``."""
    tensors = deepseek(layers=LAYERS, experts=EXPERTS)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "model"
        config = {**LLAMA_CONFIG, "num_hidden_layers": LAYERS}
        write_checkpoint(folder, config, tensors, shards=SHARDS)
        explain, bare = seconds(EXPLAIN.format(folder=str(folder))), seconds("pass")
    Console().print(
        f"explain, {len(tensors):,} tensors in {SHARDS} files: {explain:.2f} s, "
        f"{explain / bare:.0f} x a bare Python ({bare * 1000:.0f} ms)"
    )


if __name__ == "__main__":
    main()
