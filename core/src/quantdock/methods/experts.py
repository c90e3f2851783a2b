"""The routed experts of one layer: where a checkpoint has them, and the life of their weights."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from quantdock.kernels.expert_loop import ExpertMatrices, run_experts
from quantdock.schemes import LayerFacts


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertFacts:
    """One expert in the checkpoint: the shards of its w13 (gate and up, or both in one), its w2."""

    w13: tuple[LayerFacts, ...]
    w2: tuple[LayerFacts, ...]


class ExpertsMethod(ABC):
    """How the routed experts of one layer store, finish and use their weights."""

    num_experts: int

    @abstractmethod
    def create_weights(
        self,
        layer: nn.Module,
        experts: Sequence[ExpertFacts],
        hidden_size: int,
        intermediate_size: int,
        w13_sizes: Sequence[int],
        params_dtype: torch.dtype,
    ) -> None:
        """Declare what each expert needs.

        Args:
            intermediate_size: I, the input features of w2. w13_sizes: output features of each
                shard of w13: (I, I), (2I,) where both are one, (I,) without a gate.
        """

    @abstractmethod
    def load(
        self, layer: nn.Module, loaded: Tensor, expert: int, matrix: str, name: str, shard: int = 0
    ) -> None:
        """Take one tensor as the file has it, for engines that push tensors.

        Args:
            matrix: "w13" or "w2". name: of the slot, such as weight_scale. shard: of w13: 0 for
                gate, 1 for up.
        """

    @abstractmethod
    def process_weights_after_loading(self, layer: nn.Module) -> None:
        """Finish every expert for which tensors arrived; a second call changes nothing."""

    @abstractmethod
    def matrices_of(self, layer: nn.Module) -> tuple[ExpertMatrices, ExpertMatrices]:
        """Return w13 and w2 as their kernels want them."""

    def apply(
        self,
        layer: nn.Module,
        x: Tensor,
        topk_weights: Tensor,
        topk_ids: Tensor,
        gate: Callable[[Tensor], Tensor],
    ) -> Tensor:
        """Return the experts' weighted sum [T, H] for ``x`` [T, H]; see ``run_experts``."""
        w13, w2 = self.matrices_of(layer)
        return run_experts(x, topk_ids, topk_weights, w13, w2, gate, self.num_experts)

    def frozen_names(self, layer: nn.Module) -> tuple[str, ...]:
        """Return the parameters whose dtype is part of the format and must never be cast."""
        return ()
