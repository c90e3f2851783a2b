"""The routed experts of a transformers model: what they become, and our layer in their place."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import nn

from quantdock.config import QuantizationConfig
from quantdock.errors import LoadError, few
from quantdock.integrations.transformers.found import FoundLayer
from quantdock.layers.fused_moe import FusedMoE
from quantdock.layers.parallel_group import ALONE, ParallelGroup
from quantdock.layers.partition import Division
from quantdock.methods.expert_decision import decide_experts
from quantdock.methods.expert_shape import ExpertShape, W13Order
from quantdock.plan.grouping import collapse_all
from quantdock.plan.setting import Setting
from quantdock.schemes import Decision


def decide_experts_of(layer: FoundLayer, setting: Setting) -> Decision:
    """Return what the experts of a layer become."""
    if not layer.experts:
        return setting.decide(layer.facts)
    if reason := _why_not(layer, setting):
        return Decision.unquantized(reason, "quantdock")
    return decide_experts(layer.experts, setting.decide)[0]


def _why_not(layer: FoundLayer, setting: Setting) -> str:
    """Return why the experts stay as transformers has them; empty where they need not."""
    module: Any = layer.module
    if isinstance(module, FusedMoE) or not setting.config.is_online:
        return ""
    if not hasattr(module, "_apply_gate"):
        return f"experts of class {type(module).__name__} have no form that is known"
    return ""


def experts_left(found: Sequence[FoundLayer], setting: Setting) -> Iterator[str]:
    """Yield that experts stay in 16 bits though quantization was asked for, by their class."""
    left: dict[str, list[str]] = {}
    for layer in found:
        reason = _why_not(layer, setting) if layer.experts else ""
        if reason and decide_experts(layer.experts, setting.decide)[0].scheme is not None:
            left.setdefault(reason, []).append(layer.name)
    for reason, names in left.items():
        yield f"{few(collapse_all(names))} stay in {setting.dtype}: {reason}"


def build_experts(
    layer: FoundLayer,
    config: QuantizationConfig,
    dtype: torch.dtype,
    group: ParallelGroup,
    division: Division | None,
) -> FusedMoE:
    """Return our layer in the place of the experts module of ``layer``, on the meta device.

    Args:
        division: how the ranks of ``group`` divide features, or experts; None: each holds all.

    Raises:
        NoKernelError: nothing may run w13 or w2.
        LoadError: the module is of a form that is not known.
    """
    module: Any = layer.module
    is_known = layer.experts and hasattr(module, "_apply_gate")
    # transformers 5.17 has no such attribute: no class of it has a norm after its experts.
    if not is_known or getattr(module, "has_post_expert_norm", False):
        leave = f"Leave them as they are with ignore=['{layer.facts.prefix}'] (--ignore), or load"
        raise LoadError(
            f"The experts of {layer.name} ({type(module).__name__}) cannot be run quantized.",
            why=["neither their class nor the names of their tensors are of a form that is known"],
            todo=f"{leave} with quantization='none'."
            if config.is_online
            else "Load with quantization='none' to decode the weights to the model's dtype.",
        )
    shape = _shape(module, len(layer.experts), len(layer.experts[0].w13))
    for name in [*module._parameters]:
        module._parameters.pop(name)  # what is left is its activation
    with torch.device("meta"):
        return FusedMoE(
            layer.experts,
            shape,
            gate=_Gate(module, shape.w13_order),
            quant_config=config,
            params_dtype=dtype,
            prefix=layer.facts.prefix,
            group=ALONE if division is None else group,
            over="experts" if division is not None and division.side == "experts" else "features",
            division=division,
        ).eval()


def _shape(module: Any, num_experts: int, num_shards: int) -> ExpertShape:
    """Return what the experts class of transformers says of its weights."""
    hidden, intermediate, w13_size = _sizes(module)
    # Gate and up that are stored apart come one after the other, whatever the class has.
    is_interleaved = not getattr(module, "is_concatenated", True) and num_shards == 1
    order: W13Order = "interleaved" if is_interleaved else "gate_up"
    return ExpertShape(
        num_experts=num_experts,
        hidden_size=hidden,
        intermediate_size=intermediate,
        w13_sizes=(w13_size // num_shards,) * num_shards,
        w13_order=order if module.has_gate else "up",
        has_bias=bool(module.has_bias),
        top_k=getattr(getattr(module, "config", None), "num_experts_per_tok", None),
    )


def intermediate_size(module: Any) -> int:
    """Return I, the features between w13 and w2 of each expert."""
    return _sizes(module)[1]


def _sizes(module: Any) -> tuple[int, int, int]:
    """Return H, I and the output features of w13."""
    w13 = module.gate_up_proj if module.has_gate else module.up_proj
    w2 = module.down_proj
    if module.is_transposed:
        return w13.shape[1], w2.shape[1], w13.shape[2]
    return w13.shape[2], w2.shape[2], w13.shape[1]


class _Gate(nn.Module):
    """What the experts class of transformers does between w13 and w2.

    ``order`` is that of w13's rows, where the class may interleave those of gate and up.
    """

    def __init__(self, experts: nn.Module, order: W13Order) -> None:
        super().__init__()
        self.experts = experts  # without its weights
        self.mixes = order == "gate_up" and not getattr(experts, "is_concatenated", True)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return [t, I] for what w13 returned."""
        code: Any = self.experts
        if self.mixes:
            hidden = torch.stack(hidden.chunk(2, dim=-1), dim=-1).flatten(-2)
        result: torch.Tensor = code._apply_gate(hidden) if code.has_gate else code.act_fn(hidden)
        return result
