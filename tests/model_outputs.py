"""What a model computes of a few tokens, and how far two of them are apart."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import log_softmax

IDS = torch.arange(3, 40)[None]


def logits(model: Any, ids: Tensor = IDS) -> Tensor:
    """Return the logits of ``ids`` [1, T] in f32."""
    with torch.no_grad():
        result: Tensor = model(input_ids=ids).logits.float()
    return result


def kl(reference: Tensor, ours: Tensor) -> Tensor:
    """Return the Kullback-Leibler divergence of each token's logits from its reference."""
    p, q = log_softmax(reference.double(), -1), log_softmax(ours.double(), -1)
    return (p.exp() * (p - q)).sum(-1)
