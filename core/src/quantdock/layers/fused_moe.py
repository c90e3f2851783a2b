"""FusedMoE: the routed experts of one layer, whose storage and arithmetic belong to a method."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor, nn

from quantdock.errors import FormatError
from quantdock.layers.base_format import BaseFormat
from quantdock.layers.fixed_format import FixedFormat
from quantdock.layers.parallel_group import ALONE, ParallelGroup
from quantdock.layers.partition import Division, require_shardable
from quantdock.method import require_config
from quantdock.methods.build import Decider, build_experts_method
from quantdock.methods.expert_shape import ExpertShape
from quantdock.methods.experts import ExpertFacts, ExpertsMethod
from quantdock.methods.quantized_experts import QuantizedExpertsMethod
from quantdock.methods.unquantized_experts import UnquantizedExpertsMethod


class FusedMoE(FixedFormat):
    """``sum over k of weight[t, k] * w2(gate(w13(x[t])))`` of the experts each token is sent to.

    The tensors of ``w13`` [E, 2I, H] and ``w2`` [E, H, I] are parameters of the kernel's layout
    whose names begin with ``w13_`` and ``w2_``.

    Args:
        experts: where the checkpoint has each expert.
        shape: sizes of the whole layer, on however many ranks.
        gate: from what w13 returns [t, 2I] to what w2 takes [t, I]; a module, or a function.
        params_dtype: of activations, biases and unquantized weights.
        quant_config: None means unquantized.
        group: the ranks, which divide ``over``: the "experts", or the "features" I of each. Their
            results are summed in f32; without a process group each rank returns its part of it.
        division: how features are divided; None: each stands alone.
    Raises:
        ConfigError: the ranks cannot divide them; lists how many could.
    """

    def __init__(
        self,
        experts: Sequence[ExpertFacts],
        shape: ExpertShape,
        *,
        gate: Callable[[Tensor], Tensor],
        params_dtype: torch.dtype,
        quant_config: Decider | None = None,
        prefix: str = "",
        group: ParallelGroup = ALONE,
        over: Literal["experts", "features"] = "features",
        division: Division | None = None,
    ) -> None:
        super().__init__()
        self.prefix, self.params_dtype, self.gate = prefix, params_dtype, gate
        self.group, self.over = group, over
        self.shape = shape = self._divided(shape, division)
        held = shape.own_experts
        self.experts = tuple(experts[number] for number in held)
        self.others = (*experts[: held.start], *experts[held.stop :])  # that other ranks hold
        # What the ranks sum has the bias of w2 once.
        adds_bias = shape.has_bias and (over == "experts" or group.rank == 0)
        w13_rows = sum(len(cut.rows) for _, cut in shape.w13_cuts)
        self._register_bias("w13_bias", w13_rows, shape.has_bias)
        self._register_bias("w2_bias", shape.hidden_size, adds_bias)
        require_config(quant_config)
        self.quant_method: ExpertsMethod = (
            UnquantizedExpertsMethod()
            if quant_config is None
            else build_experts_method(quant_config, self.experts)
        )
        self.quant_method.create_weights(self, self.experts, shape, gate, params_dtype)

    def _divided(self, shape: ExpertShape, division: Division | None) -> ExpertShape:
        """Return ``shape`` with the part that this rank holds."""
        if self.group.size == 1:
            return shape
        size = shape.num_experts if self.over == "experts" else shape.intermediate_size
        name = self.prefix or type(self).__name__
        division = division or Division(name=name, size=size, side="rows")
        require_shardable([division], self.group.size, name)
        part = division.part(self.group.rank, self.group.size)
        if self.over == "experts":
            return replace(shape, held=part)
        return replace(shape, features=part)

    def _register_bias(self, name: str, n: int, is_there: bool) -> None:
        empty = torch.empty(len(self.experts), n, dtype=self.params_dtype)
        bias = nn.Parameter(empty, requires_grad=False) if is_there else None
        self.register_parameter(name, bias)

    def bias_part(self, name: str, whole: Tensor) -> Tensor:
        """Return this rank's part of ``w13_bias`` [E, 2I] or ``w2_bias`` [E, H] of a file."""
        held = self.shape.own_experts
        own = whole[held.start : held.stop]
        if name == "w2_bias":
            return own
        shards = torch.split(own, list(self.shape.w13_sizes), dim=1)
        parts = [shards[s][:, cut.rows.start : cut.rows.stop] for s, cut in self.shape.w13_cuts]
        return torch.cat(parts, dim=1)

    @property
    def base_format(self) -> BaseFormat:
        """Return what a runner of adapters must know of w13 and w2."""
        method = self.quant_method
        quantized = method.kernels if isinstance(method, QuantizedExpertsMethod) else None
        return BaseFormat(
            in_features=self.shape.hidden_size,
            out_features=self.shape.hidden_size,
            scheme=quantized.w13.scheme if quantized else None,
            kernel=str(quantized) if quantized else None,
            dtype=self.params_dtype,
            device=next(self.parameters()).device,
            experts=self.shape,
        )

    def forward(self, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
        """Return [..., H] for ``hidden_states`` [..., H]; the others are [tokens, k].

        Raises:
            FormatError: their shapes do not fit; kernels would read what lies behind them.
        """
        shape, sent = hidden_states.shape, top_k_index.shape
        x = hidden_states.reshape(-1, shape[-1])
        is_even = len(x) == sent[0] and sent.numel() == top_k_weights.numel()
        if not is_even or shape[-1] != self.shape.hidden_size:
            raise self._misfit(hidden_states, top_k_index, top_k_weights)
        method = self.quant_method
        if self.group.size == 1:
            return method.apply(self, x, top_k_weights, top_k_index).view(shape)
        ids = self._own_ids(top_k_index)
        result = method.apply_partial(self, x, top_k_weights, ids).view(shape)
        if self.group.process_group is None:
            return result
        return self.group.all_reduce(result).to(hidden_states.dtype)

    def _misfit(self, x: Tensor, ids: Tensor, weights: Tensor) -> FormatError:
        shapes = (list(tensor.shape) for tensor in (x, ids, weights))
        return FormatError(
            "{} was given x of shape {}, ids {} and weights {}.".format(
                self.prefix or type(self).__name__, *shapes
            ),
            why=[f"x ends in {self.shape.hidden_size} columns, the others have a row a token"],
            todo="Pass x as [..., H], and the router's ids and weights as [tokens, k].",
        )

    def _own_ids(self, ids: Tensor) -> Tensor:
        """Return ``ids`` counted from this rank's first expert; those of others as their number."""
        held = self.shape.held
        if held is None:
            return ids
        others = (ids < held.start) | (ids >= held.stop)
        return (ids - held.start).masked_fill(others, len(held))

    def extra_repr(self) -> str:
        """Describe the layer in ``print(model)``."""
        return (
            f"num_experts={len(self.experts)}, hidden_size={self.shape.hidden_size}, "
            f"intermediate_size={len(self.shape.own_features)}, {self.quant_method}"
        )
