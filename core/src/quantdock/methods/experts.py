"""The routed experts of one layer: where a checkpoint has them, and the life of their weights."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from quantdock.methods.expert_shape import ExpertShape
from quantdock.schemes import LayerFacts


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertFacts:
    """One expert in the checkpoint: the shards of its w13 (gate and up, or both in one), its w2."""

    w13: tuple[LayerFacts, ...]
    w2: tuple[LayerFacts, ...]


class ExpertsMethod(ABC):
    """How the routed experts of one layer store, finish and use their weights."""

    @abstractmethod
    def create_weights(
        self,
        layer: nn.Module,
        experts: Sequence[ExpertFacts],
        shape: ExpertShape,
        gate: Callable[[Tensor], Tensor],
        params_dtype: torch.dtype,
    ) -> None:
        """Declare what each expert needs.

        Args:
            experts: those that this rank holds. gate: from what w13 returns to what w2 takes.
        """

    @abstractmethod
    def load(
        self, layer: nn.Module, loaded: Tensor, expert: int, matrix: str, name: str, shard: int = 0
    ) -> None:
        """Take one whole tensor as the file has it, for engines that push tensors.

        Args:
            expert: its number among all; one that another rank holds is passed over.
            matrix: "w13" or "w2". name: of the slot, such as weight_scale. shard: of w13: 0 for
                gate, 1 for up.
        """

    @abstractmethod
    def process_weights_after_loading(self, layer: nn.Module) -> None:
        """Finish every expert for which tensors arrived; a second call changes nothing."""

    @abstractmethod
    def apply(self, layer: nn.Module, x: Tensor, topk_weights: Tensor, topk_ids: Tensor) -> Tensor:
        """Return the experts' weighted sum [T, H] for ``x`` [T, H]; see ``ExpertKernel``.

        ``topk_ids`` count the experts that this rank holds; their number stands for another's.
        """

    @abstractmethod
    def apply_partial(
        self, layer: nn.Module, x: Tensor, topk_weights: Tensor, topk_ids: Tensor
    ) -> Tensor:
        """Return the same in f32, unrounded where the kernel offers that."""

    def frozen_names(self, layer: nn.Module) -> tuple[str, ...]:
        """Return the parameters whose dtype is part of the format and must never be cast."""
        return ()
