"""Putting quantized layers where the model has ``nn.Linear``, by the config's decisions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from quantdock.config import QuantizationConfig
from quantdock.integrations.transformers.experts import build_experts, decide_experts_of
from quantdock.integrations.transformers.found import FoundLayer
from quantdock.integrations.transformers.sharded_layers import make_part
from quantdock.integrations.transformers.sharding import Shard, tell_attention
from quantdock.kernel import Policy
from quantdock.layers import LinearBase, ParallelGroup
from quantdock.plan.setting import Setting, refuse_nothing
from quantdock.registry import MethodChoice
from quantdock.schemes import Decision


def decide_layers(
    found: Sequence[FoundLayer], setting: Setting, choice: MethodChoice, policy: Policy
) -> dict[str, Decision]:
    """Return what each layer becomes, by its name in the model; ``policy`` is the user's.

    Raises:
        ConfigError: the config refuses a layer.
        NothingQuantizedError: quantization was asked for, and no layer would be quantized.
    """
    decisions = {layer.name: _decide(layer, setting) for layer in found}
    decided = [(decision.kind, decision.because) for decision in decisions.values()]
    refuse_nothing(choice, decided, policy)
    return decisions


def _decide(layer: FoundLayer, setting: Setting) -> Decision:
    is_experts = layer.facts.kind == "experts"
    decision = decide_experts_of(layer, setting) if is_experts else setting.decide(layer.facts)
    if decision.scheme is not None and layer.why_kept:
        decision = Decision.unquantized(layer.why_kept, "quantdock")
    # What is wrong with one of the experts names it; the layer is all of them.
    facts = replace(layer.facts, prefix=layer.name) if layer.experts else layer.facts
    setting.config.refuse(decision, facts)
    return decision


def swap_layers(
    model: Any,
    found: Sequence[FoundLayer],
    decisions: Mapping[str, Decision],
    config: QuantizationConfig,
    dtype: torch.dtype,
    shards: Mapping[str, Shard],
    group: ParallelGroup,
) -> None:
    """Replace each linear layer and experts with a scheme, and each layer that ranks divide.

    The rest stays as transformers made it.

    Raises:
        NoKernelError: no kernel may run a layer.
    """
    for layer in found:
        quant_config = None if decisions[layer.name].scheme is None else config
        if quant_config is not None and layer.facts.kind == "experts":
            division = shards[layer.name].division if layer.name in shards else None
            new: nn.Module = build_experts(layer, quant_config, dtype, group, division)
            model.set_submodule(layer.name, new)
        elif layer.name in shards:
            new = make_part(layer, shards[layer.name], quant_config, dtype, group)
            model.set_submodule(layer.name, new)
        elif quant_config is not None and isinstance(layer.module, nn.Linear):
            model.set_submodule(layer.name, _quantized(layer.module, config, layer, dtype))
    tell_attention(model, shards, group)


def _quantized(
    module: nn.Linear, config: QuantizationConfig, layer: FoundLayer, dtype: torch.dtype
) -> LinearBase:
    with torch.device("meta"):
        return LinearBase(
            module.in_features,
            module.out_features,
            module.bias is not None,
            params_dtype=dtype,
            quant_config=config,
            prefix=layer.facts.prefix,
            facts=layer.facts,
        ).eval()
