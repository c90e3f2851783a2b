"""fp8: weights in 8-bit floats, one scale a tensor or a block (DeepSeek-V3's layout).

>>> config = Fp8Config.from_config({"fmt": "e4m3", "weight_block_size": [128, 128]})
>>> str(config.scheme_for(LayerFacts(prefix="model.layers.0.mlp.up_proj")).scheme)
'fp8_e4m3[128x128] x fp8_e4m3[1x128]:dynamic'
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Self

from quantdock.configs.fields import Fields
from quantdock.configs.fp8_checkpoint import Fp8CheckpointConfig
from quantdock.configs.kv_cache_field import read_kv_cache
from quantdock.configs.stored import stored_weights
from quantdock.formats import QuantSpec
from quantdock.schemes import Decision, LayerFacts
from quantdock.schemes.shorthands import SHORTHANDS

ELEMENT_WORDS = {
    **dict.fromkeys(("e4m3", "e4m3fn", "float8_e4m3fn", "float8_e4m3", "fp8_e4m3"), "fp8_e4m3"),
    **dict.fromkeys(("e5m2", "float8_e5m2", "fp8_e5m2"), "fp8_e5m2"),
}
ACTIVATION_WORDS = {"dynamic": "dynamic", "static": "static"}
IGNORE_FIELDS = ("modules_to_not_convert", "ignored_layers")
# "ue8m0" says that scales are powers of two, rounded up; files store them as floats or as bytes.
_ROUNDING_WORDS = {
    **dict.fromkeys(("ue8m0", "e8m0", "float8_e8m0fnu"), "ceil"),
    **dict.fromkeys(("float", "float32", "fp32", "f32"), "exact"),
}
_EXPERT_WORDS = {"fp8": "fp8", "fp4": "fp4"}
_BYTES = ("uint8", "int8")
_FP4_EXPERTS = "Experts in MXFP4 beside fp8 are read with quantization='deepseek_v4_fp8'."


class Fp8Config(Fp8CheckpointConfig):
    """A checkpoint that says ``fp8``; online, the first of four fp8 schemes that a device runs.

    Attributes:
        weight_block_size: rows and columns of one scale; None: one scale a tensor, or a row.
    """

    name = "fp8"
    online_schemes = SHORTHANDS["fp8"]

    weight_block_size: tuple[int, int] | None = None
    _expert_dtype: str = "fp8"
    _fmt: str | None = None  # as the file spells it

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Self:
        """Return the config of an fp8 checkpoint.

        Raises:
            ConfigError: an impossible value, or blocks with static activations.
        """
        fields = Fields(config, cls.name)
        element = fields.choice("fmt", ELEMENT_WORDS, "fp8_e4m3")
        rounding = fields.choice("scale_fmt", _ROUNDING_WORDS, "exact")
        activation_scheme = fields.choice("activation_scheme", ACTIVATION_WORDS, "dynamic")
        block = fields.tile("weight_block_size")
        if block and activation_scheme == "static":
            because = f"weight_block_size is {list(block)}, and blocks go with dynamic activations"
            fields.refuse("activation_scheme", "'dynamic'", because)
        specs = [
            QuantSpec(element=element, rows=rows, cols=cols, rounding=rounding)
            for rows, cols in ([block] if block else []) + [(None, None), (1, None)]
        ]
        expert_dtype = fields.choice("expert_dtype", _EXPERT_WORDS, "fp8")
        read = cls(
            specs,
            activation_scheme=activation_scheme,
            ignored=fields.names(*IGNORE_FIELDS),
            kv_cache=read_kv_cache(fields),
            stated=f"weight_block_size = {list(block)}" if block else "",
            extra=fields.rest(),
        )
        read.weight_block_size = block
        read._fmt = fields.get("fmt")
        read._expert_dtype = expert_dtype
        return read

    def scheme_for(self, facts: LayerFacts) -> Decision:
        """Return what the file makes of a layer; experts in fp4 are another format."""
        if facts.kind == "experts" and self._expert_dtype == "fp4" and not facts.stored:
            because = "its experts are stored in fp4"
            return Decision.refused(because, "expert_dtype = 'fp4'", _FP4_EXPERTS)
        decision = super().scheme_for(facts)
        if not decision.error or facts.kind != "experts":
            return decision
        if all(weight.weight.dtype not in _BYTES for weight in stored_weights(facts)):
            return decision
        return replace(decision, todo=f"{_FP4_EXPERTS} Else: {decision.todo}")

    def words_for(self, tile: QuantSpec) -> str:
        """Return the block; a scale for all or for a row needs no words."""
        is_block = tile.cols is not None
        return f"weight_block_size = [{tile.rows}, {tile.cols}]" if is_block else ""

    def _expects(self, spec: QuantSpec) -> bool:
        if not self._is_said_element(spec):
            return False
        return self.weight_block_size is None or super()._expects(spec)

    def _said(self, spec: QuantSpec) -> str:
        return self._stated if self._is_said_element(spec) else f"fmt = {self._fmt!r}"

    def _is_said_element(self, spec: QuantSpec) -> bool:
        """Return whether the weight's element is the one that ``fmt`` names, if it names one."""
        return self._fmt is None or spec.element == self.specs[0].element
