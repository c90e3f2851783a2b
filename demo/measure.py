"""What the demo measures of a model: perplexity on a text, and greedy text with its speed."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.functional import log_softmax


@dataclass(frozen=True, slots=True, kw_only=True)
class Generated:
    """A greedy continuation and how fast it came."""

    text: str  # prompt and continuation
    tokens_per_second: float


@torch.inference_mode()
def perplexity(model: Any, tokenizer: Any, text: str, window: int = 256) -> float:
    """Return exp of the mean negative log-likelihood of every token of ``text`` but the first.

    Args:
        window: tokens that the model sees at once; each run of them starts without context.

    The log-softmax and the mean are taken in float32 or wider, whatever the model's dtype.
    """
    encoded = tokenizer(text, add_special_tokens=False, return_tensors="pt", verbose=False)
    ids = encoded.input_ids[0].to(model.device)
    num_predicted = len(ids) - 1
    total = 0.0
    for start in range(0, num_predicted, window):
        run = ids[start : start + window + 1]
        logits = model(input_ids=run[None, :-1], use_cache=False).logits[0]
        likelihoods = log_softmax(logits.float(), dim=-1).gather(1, run[1:, None])
        total -= likelihoods.double().sum().item()
    return math.exp(total / num_predicted)


@torch.inference_mode()
def generate_greedily(
    model: Any, tokenizer: Any, prompt: str, num_tokens: int = 40, num_warmup: int = 4
) -> Generated:
    """Return ``num_tokens`` greedy tokens after ``prompt`` and the rate at which they came.

    A warm-up of ``num_warmup`` tokens goes first, untimed. The time covers the prompt's own
    forward pass and ends when the tokens are in host memory.
    """
    inputs = tokenizer(prompt, return_tensors="pt").to(model.device)
    for count in (num_warmup, num_tokens):
        started = time.perf_counter()
        ids = model.generate(**inputs, do_sample=False, min_new_tokens=count, max_new_tokens=count)[
            0
        ].tolist()
        elapsed = time.perf_counter() - started
    text = tokenizer.decode(ids, skip_special_tokens=True)
    return Generated(text=text, tokens_per_second=num_tokens / elapsed)


def tokens_per_second(model: Any, tokenizer: Any, prompt: str, num_tokens: int = 40) -> float:
    """Return the rate of greedy generation, in tokens per second, after a warm-up."""
    return generate_greedily(model, tokenizer, prompt, num_tokens).tokens_per_second
