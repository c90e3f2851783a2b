"""From a config's decision to a layer's method."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from torch import nn

from quantdock.dispatch import Dispatch
from quantdock.errors import ConfigError
from quantdock.method import QuantizeMethodBase
from quantdock.methods.expert_decision import decide_experts
from quantdock.methods.experts import ExpertFacts, ExpertsMethod
from quantdock.methods.quantized import Decoder, QuantizedLinearMethod
from quantdock.methods.quantized_experts import QuantizedExpertsMethod
from quantdock.methods.unquantized import UnquantizedLinearMethod
from quantdock.methods.unquantized_experts import UnquantizedExpertsMethod
from quantdock.schemes import Decision, LayerFacts

# Kinds of layer whose quantized form can be executed.
EXECUTABLE = frozenset({"linear", "head"})


class Decider(Decoder, Protocol):
    """The part of a config that choosing a layer's method needs."""

    dispatch: Dispatch | None

    @property
    def name(self) -> str:
        """The method name."""

    def scheme_for(self, facts: LayerFacts) -> Decision:
        """Return what the layer is."""

    def refuse(self, decision: Decision, facts: LayerFacts) -> None:
        """Raise if ``decision`` is an error."""


def build_method(config: Decider, layer: nn.Module, prefix: str) -> QuantizeMethodBase:
    """Return the method of ``layer`` under ``config``.

    Raises:
        ConfigError: the config refuses the layer, is bound to no platform, or the layer is of a
            kind whose quantized form cannot be executed.
    """
    facts = getattr(layer, "facts", None) or LayerFacts(prefix=prefix)
    decision = config.scheme_for(facts)
    config.refuse(decision, facts)
    if decision.scheme is None:
        return UnquantizedLinearMethod()
    if facts.kind not in EXECUTABLE:
        raise ConfigError(
            f"{prefix} is stored as {decision.scheme} and is of kind {facts.kind}.",
            why=[f"quantized layers that can be executed: {', '.join(sorted(EXECUTABLE))}"],
            todo="Load with quantization='none' to decode it to the model's dtype.",
        )
    promised = decision.promised
    return QuantizedLinearMethod(
        config, decision.scheme, facts, _dispatch(config), promised=promised
    )


def build_experts_method(config: Decider, experts: Sequence[ExpertFacts]) -> ExpertsMethod:
    """Return the method of the routed experts of one layer under ``config``.

    Raises:
        ConfigError: the config refuses one, they are stored differently, or it has no platform.
    """
    w13, w2 = decide_experts(experts, config.scheme_for)
    config.refuse(w13, experts[0].w13[0])
    if w13.scheme is None or w2.scheme is None:
        return UnquantizedExpertsMethod()
    schemes, promised = (w13.scheme, w2.scheme), (w13.promised, w2.promised)
    return QuantizedExpertsMethod(config, schemes, _dispatch(config), promised=promised)


def _dispatch(config: Decider) -> Dispatch:
    if config.dispatch is None:
        raise ConfigError(
            f"This {config.name} config is bound to no platform.",
            why=["choosing a kernel needs one"],
            todo="Call config.bind(quantdock.dispatch_for(platform)) first.",
        )
    return config.dispatch
