"""What awq and gptq mean on XPU: their 4-bit layers run in oneDNN's int4 product.

That product has int8 zero points and no index of groups. So symmetric codes get the zero point 8,
and columns in act-order are sorted once, with x following them at every call. Layers of other
widths keep the core's meaning: no kernel here runs them.
"""

from __future__ import annotations

from quantdock.configs.awq import AWQConfig
from quantdock.configs.gptq import GPTQConfig
from quantdock.formats import ELEMENTS
from quantdock.schemes import Decision, LayerFacts

PRODUCT_BITS = 4


class GptqXpuConfig(GPTQConfig):
    """A checkpoint that says ``gptq``, on XPU."""

    def usual(self, facts: LayerFacts) -> Decision:
        """Return the core's decision; of a 4-bit layer it says how its columns are taken."""
        return explained(super().usual(facts))


class AwqXpuConfig(AWQConfig):
    """A checkpoint that says ``awq``, on XPU."""

    def usual(self, facts: LayerFacts) -> Decision:
        """Return the core's decision, which says how the layer's columns are taken."""
        return explained(super().usual(facts))


def explained(decision: Decision) -> Decision:
    """Return ``decision``; of a 4-bit layer it says how XPU's product takes its columns."""
    scheme = decision.scheme
    if scheme is None or ELEMENTS[scheme.weight.element].bits != PRODUCT_BITS:
        return decision
    order = "sorted by group, x follows at each call" if scheme.weight.act_order else "as stored"
    because = f"{decision.because}; XPU's int4 product takes its columns {order}"
    return Decision.quantized(scheme, because, decision.source)
