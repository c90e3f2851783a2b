"""A decoder of real size, end to end, by how its weights are kept.

Run on the GPU: ``python -m benchmarks.cuda.generate [--layers 32] [--folder FOLDER] [NAME ...]``.
Weights are random and written to the folder once (16 GB for all layers, and a quarter for each
4-bit dialect). Decoding is greedy, with transformers' static cache; with a CUDA graph the whole
step is captured, the choice of the token included.
"""

from __future__ import annotations

import argparse
import gc
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

import torch
import transformers
import triton
from torch import Tensor
from transformers import AutoModelForCausalLM, FineGrainedFP8Config, StaticCache

import quantdock
from benchmarks.cuda.decoder import LAYERS, PLAIN, checkpoint

PROMPT, STEPS, PREFILL = 128, 48, 2048  # tokens
BATCHES = (1, 32)
TURNS = 3  # of a measurement, whose median counts
GIB = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """One way to keep the weights.

    Attributes:
        stored: the checkpoint. online: what it is quantized to while it is loaded.
        needs: a package without which transformers cannot, for its own ways.
    """

    stored: str = PLAIN
    online: str | None = None
    merge: bool = False
    config: Callable[[], Any] | None = None
    needs: str = ""


WAYS = {
    "bf16": Way(),
    "fp8_per_tensor": Way(online="fp8_per_tensor"),
    "fp8_per_channel": Way(online="fp8_per_channel"),
    "fp8_per_block": Way(online="fp8_per_block"),
    "w4a16": Way(stored="w4a16"),
    "awq": Way(stored="awq"),
    "gptq": Way(stored="gptq"),
    "w8a8_int8": Way(stored="w8a8_int8"),
    "fp8_per_block, merged": Way(online="fp8_per_block", merge=True),
    "awq, merged": Way(stored="awq", merge=True),
    "transformers: fp8 blocks": Way(config=FineGrainedFP8Config, needs="kernels"),
    "transformers: torchao": Way(config=lambda: _torchao(), needs="torchao"),
    "transformers: bitsandbytes": Way(config=lambda: _bitsandbytes(), needs="bitsandbytes"),
    "transformers: awq": Way(stored="awq", needs="gptqmodel"),
}
KEYS = ("weights", "load s", "load peak GiB", "kept GiB", f"prefill {PREFILL} tok/s",
        *(f"batch {b}{how} tok/s" for b in BATCHES for how in ("", ", graph")),
        "logits off")  # fmt: skip


def _torchao() -> Any:
    from torchao.quantization import Float8DynamicActivationFloat8WeightConfig
    from transformers import TorchAoConfig

    return TorchAoConfig(Float8DynamicActivationFloat8WeightConfig())


def _bitsandbytes() -> Any:
    from transformers import BitsAndBytesConfig

    return BitsAndBytesConfig(load_in_8bit=True)


def load(name: str, folder: Path) -> Any:
    """Return the model whose weights are kept in one way."""
    way = WAYS[name]
    if name.startswith("transformers") or name == PLAIN:
        quantization = {} if way.config is None else {"quantization_config": way.config()}
        return AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.bfloat16, device_map="cuda", **quantization
        )
    return quantdock.load(folder, way.online, "cuda", "bfloat16", merge=way.merge)


class Decoding:
    """Steps of one batch: each appends the likeliest token of every sequence."""

    def __init__(self, model: Any, batch: int) -> None:
        self._model = model
        self._prompt = torch.arange(PROMPT, device="cuda").repeat(batch, 1)
        most = PROMPT + (TURNS + 2) * STEPS
        self._cache = StaticCache(config=model.config, max_cache_len=most)
        self._token = torch.zeros((batch, 1), dtype=torch.long, device="cuda")
        self._begin()

    def _begin(self) -> None:
        self._cache.reset()
        self._append(self._prompt)

    def _append(self, ids: Tensor) -> None:
        out = self._model(
            input_ids=ids, past_key_values=self._cache, use_cache=True, logits_to_keep=1
        )
        self._token.copy_(out.logits[:, -1].argmax(-1, keepdim=True))

    def step(self) -> None:
        """Append a token."""
        self._append(self._token)

    def captured(self) -> Callable[[], None]:
        """Return what replays a step."""
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            self.step()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self.step()
        return graph.replay

    def rate(self, step: Callable[[], None]) -> float:
        """Return tokens a second, of the median of some turns of steps."""
        self._begin()
        seconds = []
        for _ in range(TURNS):
            seconds.append(_seconds(step, STEPS))
        return len(self._token) * STEPS / median(seconds)


def prefill_rate(model: Any) -> float:
    """Return tokens a second of one long prompt."""
    ids = torch.arange(PREFILL, device="cuda")[None]
    seconds = [_seconds(lambda: model(input_ids=ids, logits_to_keep=1)) for _ in range(TURNS + 1)]
    return PREFILL / median(seconds[1:])


def _seconds(call: Callable[[], object], times: int = 1) -> float:
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(times):
        call()
    torch.cuda.synchronize()
    return time.perf_counter() - start


def rates(model: Any) -> Iterator[float | None]:
    """Yield tokens a second: of a prompt, then of each batch without and with a graph."""
    yield prefill_rate(model)
    for batch in BATCHES:
        decoding = Decoding(model, batch)
        decoding.step()
        yield decoding.rate(decoding.step)
        try:
            yield decoding.rate(decoding.captured())
        except RuntimeError as error:  # a way that waits for the GPU within a step
            print(f"no graph: {str(error).splitlines()[0]}")
            yield None


@torch.no_grad()
def measure(name: str, folder: Path, plain: Tensor | None) -> tuple[list[Any], Tensor]:
    """Return a row of the table, and the logits of a prompt.

    Args:
        plain: those of the unquantized model.
    """
    torch.cuda.reset_peak_memory_stats()
    start = time.perf_counter()
    model = load(name, folder)
    torch.cuda.synchronize()
    seconds, peak = time.perf_counter() - start, torch.cuda.max_memory_allocated() / GIB
    kept = torch.cuda.memory_allocated() / GIB
    prompt = torch.arange(PROMPT, device="cuda")[None]
    logits = model(input_ids=prompt).logits[0].float()
    off = None if plain is None else float((logits - plain).norm() / plain.norm())
    return [name, seconds, peak, kept, *rates(model), off], logits


def show(value: Any) -> str:
    """Return a cell of the table."""
    if isinstance(value, float):
        return f"{value:.3f}" if value < 1 else f"{value:,.1f}" if value < 100 else f"{value:,.0f}"
    return "-" if value is None else str(value)


def main() -> None:
    """Print a table, a row for each way."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(WAYS))
    parser.add_argument("--layers", type=int, default=LAYERS)
    parser.add_argument("--folder", type=Path, default=Path("build/generate"))
    asked = parser.parse_args()
    versions = ", ".join(f"{m.__name__} {m.__version__}" for m in (torch, triton, transformers))
    print(f"{torch.cuda.get_device_name()}, {versions}, {asked.layers} layers")
    print(f"\n| {' | '.join(KEYS)} |\n|{'---|' * len(KEYS)}", flush=True)
    plain = None
    for name in asked.names or WAYS:
        way = WAYS[name]
        if way.needs and find_spec(way.needs) is None:
            print(f"| {name} | needs {way.needs}, which is not installed |", flush=True)
            continue
        row, logits = measure(name, checkpoint(asked.folder, way.stored, asked.layers), plain)
        plain = logits if name == PLAIN else plain
        print(f"| {' | '.join(show(value) for value in row)} |", flush=True)
        gc.collect()
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
