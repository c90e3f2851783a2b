"""Rates of a model that decodes: prompts, and steps with and without a CUDA graph."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import median
from typing import Any

import torch
from torch import Tensor
from transformers import StaticCache

PROMPT, PREFILL, STEPS = 128, 2048, 16  # tokens
BATCHES = (1, 16)
TURNS = 5  # of a measurement, whose median counts


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
        step()
        with _calm():
            seconds = [_seconds(step, STEPS) for _ in range(TURNS)]
        return len(self._token) * STEPS / median(seconds)


def rates(model: Any) -> Iterator[float | None]:
    """Yield tokens a second: of a prompt, then of each batch without and with a graph."""
    yield _prefill_rate(model)
    for batch in BATCHES:
        decoding = Decoding(model, batch)
        decoding.step()
        yield decoding.rate(decoding.step)
        try:
            yield decoding.rate(decoding.captured())
        except RuntimeError as error:  # a way that waits for the GPU within a step
            print(f"no graph: {str(error).splitlines()[0]}", flush=True)
            yield None


def _prefill_rate(model: Any) -> float:
    """Return tokens a second of one long prompt."""
    ids = torch.arange(PREFILL, device="cuda")[None]
    for _ in range(2):
        model(input_ids=ids, logits_to_keep=1)
    with _calm():
        seconds = [_seconds(lambda: model(input_ids=ids, logits_to_keep=1)) for _ in range(TURNS)]
    return PREFILL / median(seconds)


@contextmanager
def _calm() -> Iterator[None]:
    """Keep the calling thread on one core, and Python from collecting garbage meanwhile."""
    cores = os.sched_getaffinity(0)
    gc.collect()
    gc.disable()
    os.sched_setaffinity(0, {max(cores)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)
        gc.enable()


def _seconds(call: Callable[[], object], times: int = 1) -> float:
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(times):
        call()
    torch.cuda.synchronize()
    return time.perf_counter() - start
