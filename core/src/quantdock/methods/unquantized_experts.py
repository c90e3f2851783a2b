"""The method of routed experts that stay in the model's dtype."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from quantdock.errors import LoadError, few
from quantdock.kernels.expert_loop import ExpertMatrices
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
        hidden_size: int,
        intermediate_size: int,
        w13_sizes: Sequence[int],
        params_dtype: torch.dtype,
    ) -> None:
        """Register w13_weight and w2_weight; unset memory is never computed with."""
        self.num_experts = len(experts)
        self.sizes = {"w13": tuple(w13_sizes), "w2": (hidden_size,)}
        widths = {"w13": hidden_size, "w2": intermediate_size}
        self._missing = {
            (expert, matrix, shard)
            for expert in range(self.num_experts)
            for matrix, sizes in self.sizes.items()
            for shard in range(len(sizes))
        }
        for matrix, sizes in self.sizes.items():
            data = torch.empty(self.num_experts, sum(sizes), widths[matrix], dtype=params_dtype)
            layer.register_parameter(f"{matrix}_weight", nn.Parameter(data, requires_grad=False))

    def load(
        self, layer: nn.Module, loaded: Tensor, expert: int, matrix: str, name: str, shard: int = 0
    ) -> None:
        """Copy the weight [n, K] of one shard of one expert."""
        parameter = layer._parameters[f"{matrix}_weight"]
        assert parameter is not None, "create_weights registers it"
        tops = list(accumulate(self.sizes[matrix], initial=0))
        target = parameter.data[expert, tops[shard] : tops[shard + 1]]
        if name != "weight" or loaded.shape != target.shape or not loaded.is_floating_point():
            raise LoadError(
                f"{name} of {matrix}, expert {expert}, is {loaded.dtype} {list(loaded.shape)}.",
                why=[f"the experts are not quantized, and a weight is {list(target.shape)}"],
                todo="Load the checkpoint that belongs to this model's config.",
            )
        target.copy_(loaded)
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

    def matrices_of(self, layer: nn.Module) -> tuple[ExpertMatrices, ExpertMatrices]:
        """Return w13 and w2."""
        w13, w2 = (
            ExpertMatrices(
                kernel=_Plain(),
                tensors={"weight": _present(layer, f"{matrix}_weight")},
                bias=layer._parameters.get(f"{matrix}_bias"),
            )
            for matrix in self.sizes
        )
        return w13, w2

    def __str__(self) -> str:
        return "unquantized"


def _present(layer: nn.Module, name: str) -> Tensor:
    tensor = layer._parameters[name]
    assert tensor is not None, "create_weights registers it"
    return tensor
