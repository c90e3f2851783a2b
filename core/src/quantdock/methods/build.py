"""From a config's decision to a layer's method."""

from __future__ import annotations

from typing import Protocol

from torch import nn

from quantdock.dispatch import Dispatch
from quantdock.errors import ConfigError
from quantdock.method import QuantizeMethodBase
from quantdock.methods.quantized import Decoder, QuantizedLinearMethod
from quantdock.methods.unquantized import UnquantizedLinearMethod
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
    if config.dispatch is None:
        raise ConfigError(
            f"This {config.name} config is bound to no platform.",
            why=["choosing a kernel needs one"],
            todo="Call config.bind(quantdock.dispatch_for(platform)) first.",
        )
    return QuantizedLinearMethod(config, decision.scheme, facts, config.dispatch)
