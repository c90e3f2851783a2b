"""Unquantized experts by torch's grouped product: tokens are sorted, and no size leaves the device.

The host waits for nothing, so the layer can be captured into a graph of the device; a loop over
experts (expert_loop.py) has to know how many tokens each has.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import grouped_mm

from quantdock.kernels.expert_loop import W2, W13

_MULTIPLE = 8  # of features: torch wants rows of whole 16 bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupedExperts:
    """Runs w13 and w2 of all experts in one product each; ``gate`` as in ExpertLoop."""

    gate: Callable[[Tensor], Tensor]
    num_experts: int

    def takes(self, tensors: Mapping[str, Tensor], x: Tensor) -> bool:
        """Return whether torch has a grouped product for x and these weights on x's device."""
        sizes = (*tensors[f"{W13}weight"].shape[1:], tensors[f"{W2}weight"].shape[2])
        fits = not any(size % _MULTIPLE for size in sizes)
        return x.device.type != "cpu" and x.dtype == torch.bfloat16 and fits and x.numel() > 0

    def apply(
        self, tensors: Mapping[str, Tensor], x: Tensor, topk_weights: Tensor, topk_ids: Tensor
    ) -> Tensor:
        """Return the sum of each token's experts [T, H], in x's dtype; see ExpertKernel."""
        return self._sum(tensors, x, topk_weights, topk_ids).to(x.dtype)

    def apply_partial(
        self, tensors: Mapping[str, Tensor], x: Tensor, topk_weights: Tensor, topk_ids: Tensor
    ) -> Tensor:
        """Return the sum in f32; each product is rounded to the dtype of the weights."""
        return self._sum(tensors, x, topk_weights, topk_ids).float()

    def _sum(
        self, tensors: Mapping[str, Tensor], x: Tensor, topk_weights: Tensor, topk_ids: Tensor
    ) -> Tensor:
        num_tokens, k = topk_ids.shape
        sent, order = topk_ids.reshape(-1).sort(stable=True)
        experts = torch.arange(self.num_experts, device=x.device)
        ends = torch.searchsorted(sent, experts, right=True).to(torch.int32)
        rows = x.index_select(0, order // k)
        # Rows of other ranks' experts, which come last, are not written, nor are their gradients.
        is_unwritten = (sent >= self.num_experts)[:, None]
        hidden = _products(W13, tensors, _stopped(rows, is_unwritten), sent, ends)
        inner = self.gate(_stopped(hidden, is_unwritten))
        parts = _products(W2, tensors, _stopped(inner, is_unwritten), sent, ends)
        parts = parts.masked_fill(is_unwritten, 0)
        parts = parts * topk_weights.reshape(-1)[order, None]
        back = torch.empty_like(order)
        back[order] = torch.arange(len(order), device=x.device)
        return parts.index_select(0, back).view(num_tokens, k, -1).sum(dim=1)


def _stopped(rows: Tensor, is_unwritten: Tensor) -> Tensor:
    """Return ``rows``, through which those that are unwritten get no gradients, if any are made."""
    return rows.masked_fill(is_unwritten, 0) if rows.requires_grad else rows


def _products(
    prefix: str, tensors: Mapping[str, Tensor], rows: Tensor, sent: Tensor, ends: Tensor
) -> Tensor:
    """Return each row times its expert's matrix; ``ends``: int32 [E], where experts' rows end."""
    weight, bias = tensors[f"{prefix}weight"], tensors.get(f"{prefix}bias")
    result = grouped_mm(rows, weight.transpose(1, 2), offs=ends)
    return result if bias is None else result + bias[sent.clamp(max=len(bias) - 1)]
