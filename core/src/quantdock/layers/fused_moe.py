"""FusedMoE: the routed experts of one layer, whose storage and arithmetic belong to a method."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from quantdock.layers.fixed_format import FixedFormat
from quantdock.methods.build import Decider, build_experts_method
from quantdock.methods.experts import ExpertFacts, ExpertsMethod
from quantdock.methods.unquantized_experts import UnquantizedExpertsMethod


class FusedMoE(FixedFormat):
    """``sum over k of weight[t, k] * w2(gate(w13(x[t])))`` of the experts each token is sent to.

    The tensors of ``w13`` [E, 2I, H] and ``w2`` [E, H, I] are parameters of the kernel's layout
    whose names begin with ``w13_`` and ``w2_``.

    Args:
        experts: where the checkpoint has each expert. hidden_size: H. intermediate_size: I.
        w13_sizes: output features of each shard of w13.
        gate: from what w13 returns [t, 2I] to what w2 takes [t, I]; a module, or a function.
        params_dtype: of activations, biases and unquantized weights.
        quant_config: None means unquantized.
        has_bias: whether w13 and w2 have biases.
    """

    def __init__(
        self,
        experts: Sequence[ExpertFacts],
        hidden_size: int,
        intermediate_size: int,
        *,
        w13_sizes: Sequence[int],
        gate: Callable[[Tensor], Tensor],
        params_dtype: torch.dtype,
        quant_config: Decider | None = None,
        has_bias: bool = False,
        prefix: str = "",
    ) -> None:
        super().__init__()
        self.prefix, self.params_dtype = prefix, params_dtype
        self.num_experts = len(experts)
        self.hidden_size, self.intermediate_size = hidden_size, intermediate_size
        self.gate = gate
        for name, n in (("w13_bias", sum(w13_sizes)), ("w2_bias", hidden_size)):
            empty = torch.empty(self.num_experts, n, dtype=params_dtype)
            bias = nn.Parameter(empty, requires_grad=False) if has_bias else None
            self.register_parameter(name, bias)
        self.experts = tuple(experts)
        self.quant_method: ExpertsMethod = (
            UnquantizedExpertsMethod()
            if quant_config is None
            else build_experts_method(quant_config, experts)
        )
        self.quant_method.create_weights(
            self, experts, hidden_size, intermediate_size, w13_sizes, params_dtype
        )

    def forward(self, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
        """Return [..., H] for ``hidden_states`` [..., H]; the others are [tokens, k]."""
        shape = hidden_states.shape
        x = hidden_states.reshape(-1, shape[-1])
        result = self.quant_method.apply(self, x, top_k_weights, top_k_index, self.gate)
        return result.view(shape)

    def extra_repr(self) -> str:
        """Describe the layer in ``print(model)``."""
        return (
            f"num_experts={self.num_experts}, hidden_size={self.hidden_size}, "
            f"intermediate_size={self.intermediate_size}, {self.quant_method}"
        )
