"""Experts one after another, each matrix through a linear kernel.

Tokens are sorted by expert, so that every kernel is called once for each expert that has any. This
runs on every device and with every scheme that a linear kernel takes; a fused kernel replaces it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from quantdock.errors import FormatError


class LinearKernel(Protocol):
    """The part of a linear kernel that one expert needs."""

    def apply(self, tensors: Mapping[str, Tensor], x: Tensor, bias: Tensor | None) -> Tensor:
        """Return ``x @ weight.T + bias``."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertMatrices:
    """One matrix of all experts as its kernel wants it.

    Shapes:
        tensors: each [E, ...], one slice an expert. bias: [E, N].
    """

    kernel: LinearKernel
    tensors: Mapping[str, Tensor]
    bias: Tensor | None = None

    def apply(self, expert: int, x: Tensor) -> Tensor:
        """Return ``x @ weight.T + bias`` of one expert."""
        own = {name: tensor[expert] for name, tensor in self.tensors.items()}
        return self.kernel.apply(own, x, None if self.bias is None else self.bias[expert])


def run_experts(
    x: Tensor,
    topk_ids: Tensor,
    topk_weights: Tensor,
    w13: ExpertMatrices,
    w2: ExpertMatrices,
    gate: Callable[[Tensor], Tensor],
    num_experts: int,
) -> Tensor:
    """Return the sum of each token's experts, each multiplied by its routing weight.

    An id of ``num_experts`` stands for an expert that another rank holds; it adds nothing.

    Shapes:
        x: [T, H]. topk_ids: int [T, k]. topk_weights: [T, k]. ``gate`` takes what w13 returns,
        [t, 2I], and returns what w2 takes, [t, I]. Returns [T, H] in x's dtype.
    Raises:
        FormatError: an id is no expert's.
    """
    num_tokens, k = topk_ids.shape
    order = topk_ids.reshape(-1).argsort(stable=True)
    rows = x[order // k]
    results = x.new_zeros((num_tokens * k, x.shape[1]))
    for expert, part in _turns(topk_ids, num_experts):
        hidden = gate(w13.apply(expert, rows[part]))
        results[part] = w2.apply(expert, hidden)
    weighted = results * topk_weights.reshape(-1)[order, None]
    in_place = torch.empty_like(weighted)
    in_place[order] = weighted
    return in_place.view(num_tokens, k, x.shape[1]).sum(dim=1).to(x.dtype)


def _turns(topk_ids: Tensor, num_experts: int) -> Iterator[tuple[int, slice]]:
    """Yield each expert that has tokens, and where they are once sorted."""
    counts = torch.bincount(topk_ids.reshape(-1), minlength=num_experts + 1).tolist()
    if len(counts) > num_experts + 1:
        raise FormatError(
            f"A token was sent to expert {len(counts) - 1}.",
            why=[f"the layer has experts 0 to {num_experts - 1}; {num_experts} stands for none"],
            todo="Check the router.",
        )
    start = 0
    for expert, count in enumerate(counts[:num_experts]):
        if count:
            yield expert, slice(start, start + count)
        start += count
