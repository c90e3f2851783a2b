"""Quantized KV caches beside a 16-bit one: bytes, speed with a long context, and what they change.

Quality is measured in float32, so that nothing but the cache differs; the text goes through the
cache in pieces. Speed is measured in bfloat16, where the plain cache has 16 bits; the caches take
turns of a few tokens each. Static scales are calibrated on a part of the text that is not scored.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from inspect import signature
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor
from torch.nn.functional import log_softmax
from transformers import AutoTokenizer, DynamicCache

import quantdock
from benchmarks.harness import machine
from demo.models import CACHE, ROOT, TINY_LLAMA
from quantdock.formats import ELEMENTS
from quantdock.integrations.transformers.model_cache import ModelKVCache
from quantdock.kv_cache import KVScale, KVScales

LENGTH = 1024  # tokens of context
PIECE = 128  # tokens of the text that go through the cache at once
TURN, ROUNDS = 4, 10  # tokens that one cache decodes in a row, and how often
PLAIN = "16 bits"
Scales = Mapping[int, KVScales]
Rules = Callable[[Tensor, Tensor], KVScales]  # from a layer's keys and values [1, H, T, D]


def calibrated(element: str, dims: tuple[int, ...]) -> Rules:
    """Return the rule that makes scales of the largest magnitudes over ``dims``."""

    def scale(states: Tensor) -> KVScale:
        return KVScale.of(states.float().abs().amax(dims) / ELEMENTS[element].largest)

    return lambda keys, values: KVScales(k=scale(keys), v=scale(values))


def ones(keys: Tensor, values: Tensor) -> KVScales:
    """Return the scales of a checkpoint that promises some and stores none."""
    return KVScales(k=KVScale.of(torch.ones(())), v=KVScale.of(torch.ones(())))


def dynamic(keys: Tensor, values: Tensor) -> KVScales:
    """Return that each token and head has its own."""
    return KVScales()


ALL, PER_HEAD = (0, 1, 2, 3), (0, 2, 3)
VARIANTS: dict[str, tuple[str, Rules]] = {
    "fp8_e4m3[token]:dynamic": ("fp8_e4m3", dynamic),
    "fp8_e4m3[head], calibrated": ("fp8_e4m3", calibrated("fp8_e4m3", PER_HEAD)),
    "fp8_e4m3[tensor], calibrated": ("fp8_e4m3", calibrated("fp8_e4m3", ALL)),
    "fp8_e4m3[tensor], all 1.0": ("fp8_e4m3", ones),
    "fp8_e5m2[token]:dynamic": ("fp8_e5m2", dynamic),
    "int8[token]:dynamic": ("int8", dynamic),
    "int8[head], calibrated": ("int8", calibrated("int8", PER_HEAD)),
    "int8[tensor], calibrated": ("int8", calibrated("int8", ALL)),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Quality:
    """Beside the plain cache: the divergence KL(plain || ours) a token, and the perplexity."""

    perplexity: float
    mean_kl: float
    max_kl: float


def main() -> None:
    """Print one row for each kind of cache."""
    folder = CACHE if (CACHE / "config.json").is_file() else TINY_LLAMA
    tokenizer = AutoTokenizer.from_pretrained(folder)
    text = (ROOT / "demo" / "text.txt").read_text(encoding="utf-8")
    ids = tokenizer(text, add_special_tokens=False, return_tensors="pt", verbose=False).input_ids
    scored, calibration = ids[:, : LENGTH + 1], ids[:, LENGTH : 2 * LENGTH]
    console = Console()
    console.print(
        f"{folder.name}, {scored.shape[1] - 1} tokens scored, {calibration.shape[1]} for "
        f"calibration; {machine()}",
        highlight=False,
    )
    with torch.inference_mode():
        exact = quantdock.load(folder, device="cpu", dtype="float32")
        makers = make_caches(exact, calibration)
        quality = measure_quality(exact, makers, scored)
        model = quantdock.load(folder, device="cpu", dtype="bfloat16")
        sizes, speeds = measure_speed(model, makers, scored[:, :LENGTH])
    console.print(table(sizes, speeds, quality))


def make_caches(model: Any, calibration: Tensor) -> dict[str, Callable[[], Any]]:
    """Return for each kind of cache what makes an empty one."""
    seen = DynamicCache(config=model.config)
    forward(model, calibration, seen)
    makers: dict[str, Callable[[], Any]] = {PLAIN: lambda: DynamicCache(config=model.config)}
    for name, (element, rule) in VARIANTS.items():
        scales = {i: rule(layer.keys, layer.values) for i, layer in enumerate(seen.layers)}
        makers[name] = ModelKVCache(config=model.config, element=element, scales=scales).new
    return makers


def forward(model: Any, ids: Tensor, cache: Any) -> Tensor:
    """Return the logits [T, V] of ``ids`` [1, T] after what is in ``cache``."""
    name = "cache" if "cache" in signature(model.forward).parameters else "past_key_values"
    logits: Tensor = model(input_ids=ids, **{name: cache}).logits[0]
    return logits


def measure_quality(
    model: Any, makers: Mapping[str, Callable[[], Any]], scored: Tensor
) -> dict[str, Quality]:
    """Return what each cache makes of the text."""
    found: dict[str, Quality] = {}
    plain: list[Tensor] = []  # of the first, log-probabilities of each piece
    pieces = scored[:, :-1].split(PIECE, dim=1)
    targets = scored[0, 1:].split(PIECE)
    for name, make in makers.items():
        cache, losses, divergences = make(), [], []
        for number, (piece, target) in enumerate(zip(pieces, targets, strict=True)):
            ours = log_softmax(forward(model, piece, cache), dim=-1)
            if name == PLAIN:
                plain.append(ours)
            losses.append(-ours.gather(1, target[:, None]).double())
            divergences.append((plain[number].exp() * (plain[number] - ours)).sum(-1).double())
        kl = torch.cat(divergences).clamp(min=0)  # f32 leaves 1e-7 of noise
        found[name] = Quality(
            perplexity=torch.cat(losses).mean().exp().item(),
            mean_kl=kl.mean().item(),
            max_kl=kl.max().item(),
        )
    return found


def measure_speed(
    model: Any, makers: Mapping[str, Callable[[], Any]], prompt: Tensor
) -> tuple[dict[str, int], dict[str, float]]:
    """Return for each cache its bytes after the prompt, and seconds a token that follows."""
    caches = {name: make() for name, make in makers.items()}
    forward(model, prompt, caches[PLAIN])
    for name, cache in caches.items():
        for layer, filled in zip(cache.layers, caches[PLAIN].layers, strict=True):
            if name != PLAIN:  # from the same keys and values: a prompt in bfloat16 takes long
                layer.update(filled.keys, filled.values)
    sizes = {name: num_bytes(cache) for name, cache in caches.items()}
    best = dict.fromkeys(caches, float("inf"))
    for _ in range(ROUNDS):
        for name, cache in caches.items():
            for _ in range(TURN):
                start = time.perf_counter()
                forward(model, prompt[:, -1:], cache)
                best[name] = min(best[name], time.perf_counter() - start)
            cache.crop(-TURN)
    return sizes, best


def num_bytes(cache: Any) -> int:
    """Return the bytes that a cache holds."""
    return sum(
        layer.num_bytes if hasattr(layer, "num_bytes") else layer.keys.nbytes + layer.values.nbytes
        for layer in cache.layers
    )


def table(
    sizes: Mapping[str, int], seconds: Mapping[str, float], quality: Mapping[str, Quality]
) -> Table:
    """Return the figures, ratios to the plain cache in every row."""
    heads = ("kB a token", "memory", "tokens/s", "speed", "perplexity", "ratio", "mean KL", "max")
    result = Table("cache", *heads, title=f"KV caches with {LENGTH:,} tokens", box=None)
    result.title_justify = "left"
    base = quality[PLAIN].perplexity
    for name, found in quality.items():
        result.add_row(
            name.replace("[", r"\["),
            f"{sizes[name] / LENGTH / 1000:.2f}",
            f"{sizes[name] / sizes[PLAIN]:.3f}",
            f"{1 / seconds[name]:.1f}",
            f"{seconds[PLAIN] / seconds[name]:.2f}",
            f"{found.perplexity:.3f}",
            f"{found.perplexity / base:.4f}",
            f"{found.mean_kl:.1e}",
            f"{found.max_kl:.1e}",
        )
    return result


if __name__ == "__main__":
    main()
