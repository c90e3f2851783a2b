"""The method of routed experts that stay in the model's dtype."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from quantdock.errors import LoadError, few
from quantdock.kernels.expert_loop import ExpertLoop
from quantdock.kernels.grouped_experts import GroupedExperts
from quantdock.methods.expert_shape import Cuts, ExpertShape
from quantdock.methods.experts import ExpertFacts, ExpertsMethod


class _Plain:
    """A linear layer that is not quantized."""

    def apply(self, tensors: Mapping[str, Tensor], x: Tensor, bias: Tensor | None) -> Tensor:
        return F.linear(x, tensors["weight"], bias)


class UnquantizedExpertsMethod(ExpertsMethod):
    """Plain weights w13 [E, 2I, H] and w2 [E, H, I]."""

    def create_weights(
        self,
        layer: nn.Module,
        experts: Sequence[ExpertFacts],
        shape: ExpertShape,
        gate: Callable[[Tensor], Tensor],
        params_dtype: torch.dtype,
    ) -> None:
        """Register w13_weight and w2_weight; unset memory is never computed with."""
        self.shape = shape
        self._cuts: dict[str, Cuts] = {"w13": shape.w13_cuts, "w2": shape.w2_cuts}
        number = len(shape.own_experts)
        self._missing = {
            (expert, matrix, shard)
            for expert in shape.own_experts
            for matrix, cuts in self._cuts.items()
            for shard, _ in cuts
        }
        self._loop = ExpertLoop(w13=_Plain(), w2=_Plain(), gate=gate, num_experts=number)
        self._grouped = GroupedExperts(gate=gate, num_experts=number)
        for matrix, cuts in self._cuts.items():
            n, k = sum(len(cut.rows) for _, cut in cuts), len(cuts[0][1].columns)
            data = torch.empty(number, n, k, dtype=params_dtype)
            layer.register_parameter(f"{matrix}_weight", nn.Parameter(data, requires_grad=False))

    def load(
        self, layer: nn.Module, loaded: Tensor, expert: int, matrix: str, name: str, shard: int = 0
    ) -> None:
        """Copy this rank's part of the weight [n, K] of one shard of one expert."""
        if expert not in self.shape.own_experts:
            return
        parameter = layer._parameters[f"{matrix}_weight"]
        assert parameter is not None, "create_weights registers it"
        own, top = parameter.data[self.shape.own_experts.index(expert)], 0
        for of_shard, cut in self._cuts[matrix]:
            rows = slice(top, top + len(cut.rows))
            top = rows.stop
            if of_shard != shard:
                continue
            if name != "weight" or not loaded.is_floating_point() or loaded.shape != (cut.n, cut.k):
                raise LoadError(
                    f"{name} of {matrix}, expert {expert}, is {loaded.dtype} {list(loaded.shape)}.",
                    why=[f"the experts are not quantized, and a weight is {[cut.n, cut.k]}"],
                    todo="Load the checkpoint that belongs to this model's config.",
                )
            own[rows].copy_(loaded[cut.region])
        self._missing.discard((expert, matrix, shard))

    def process_weights_after_loading(self, layer: nn.Module) -> None:
        """Check that every weight arrived.

        Raises:
            LoadError: one did not; names its expert.
        """
        if self._missing:
            lost = [f"{matrix} of expert {e}" for e, matrix, _ in sorted(self._missing)]
            raise LoadError(
                f"{len(lost)} weights of experts were not loaded.",
                why=[few(lost)],
                todo="Check that the checkpoint holds this layer.",
            )

    def apply(self, layer: nn.Module, x: Tensor, topk_weights: Tensor, topk_ids: Tensor) -> Tensor:
        """Return the experts' weighted sum [T, H]."""
        tensors = _tensors(layer)
        return self._kernel(tensors, x).apply(tensors, x, topk_weights, topk_ids)

    def apply_partial(
        self, layer: nn.Module, x: Tensor, topk_weights: Tensor, topk_ids: Tensor
    ) -> Tensor:
        """Return the same in f32; each product is rounded to the dtype of the weights."""
        tensors = _tensors(layer)
        return self._kernel(tensors, x).apply_partial(tensors, x, topk_weights, topk_ids)

    def _kernel(self, tensors: Mapping[str, Tensor], x: Tensor) -> ExpertLoop | GroupedExperts:
        return self._grouped if self._grouped.takes(tensors, x) else self._loop

    def __str__(self) -> str:
        return "unquantized"


def _tensors(layer: nn.Module) -> dict[str, Tensor]:
    return {name: tensor for name, tensor in layer._parameters.items() if tensor is not None}
