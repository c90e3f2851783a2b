"""The weights of a transformers experts module, from experts that files store in their own ways."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from quantdock.methods.experts import ExpertFacts

W13, W2 = frozenset({"gate_up_proj", "up_proj"}), "down_proj"


def stack_experts(
    module: Any, parameter: str, experts: Sequence[ExpertFacts], read: Callable[[str], Tensor]
) -> Tensor:
    """Return ``parameter`` of ``module`` as its class has it: [E, N, K], or [E, K, N].

    Args:
        parameter: gate_up_proj, up_proj or down_proj.
        read: returns the plain weight [N, K] of a name.
    """
    own = [expert.w2 if parameter == W2 else expert.w13 for expert in experts]
    weights = [torch.cat([read(f"{facts.prefix}.weight") for facts in shards]) for shards in own]
    stacked = torch.stack(weights)
    return stacked.transpose(1, 2).contiguous() if module.is_transposed else stacked
