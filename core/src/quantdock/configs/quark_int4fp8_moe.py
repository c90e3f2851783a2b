"""quark_int4fp8_moe: 16-bit experts in int4 codes of fp8 numbers at load, activations in fp8.

>>> config = QuarkInt4Fp8MoeConfig.online()
>>> config.scheme_for(LayerFacts(prefix="model.layers.0.self_attn.q_proj")).because
'quark_int4fp8_moe stands for experts; other layers stay in the dtype of the model'
"""

from __future__ import annotations

from typing import ClassVar

from quantdock.configs.online import OnlineConfig
from quantdock.schemes import Decision, LayerFacts, Scheme, parse_scheme


class QuarkInt4Fp8MoeConfig(OnlineConfig):
    """Experts with one int4 scale a row under one for the weight, which makes fp8 of the codes."""

    name = "quark_int4fp8_moe"
    online_schemes: ClassVar[tuple[Scheme, ...]] = (
        parse_scheme("int4[1x*]:second[*x*] x fp8_e4m3[1x*]:dynamic"),
    )

    def scheme_for(self, facts: LayerFacts) -> Decision:
        """Return the scheme of experts; other layers stay as they are."""
        if facts.kind != "experts":
            because = "stands for experts; other layers stay in the dtype of the model"
            return Decision.unquantized(f"{self.name} {because}", self.name)
        return super().scheme_for(facts)
