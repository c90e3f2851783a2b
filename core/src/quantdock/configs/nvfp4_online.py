"""nvfp4_online: 16-bit layers in NVFP4 at load; or the experts of an fp8 file, quantized again.

>>> block = {"quant_method": "fp8", "weight_block_size": [128, 128]}
>>> config = Nvfp4OnlineConfig.from_config(block)
>>> config.scheme_for(LayerFacts(prefix="model.layers.0.mlp.up_proj")).scheme.weight.element
'fp8_e4m3'
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from quantdock.config import QuantizationConfig
from quantdock.configs.fp8 import Fp8Config
from quantdock.configs.modelopt import ModelOptFp8Config
from quantdock.configs.other_words import ConfigOfOtherWords
from quantdock.methods.slot import Slot
from quantdock.schemes import Decision, LayerFacts, Scheme
from quantdock.schemes.shorthands import SHORTHANDS

if TYPE_CHECKING:
    from torch import Tensor

    from quantdock.numerics.canonical import CanonicalWeight


class _ModelOptFp8(ModelOptFp8Config):
    """ModelOpt's fp8 files, read for this method."""

    name = "nvfp4_online"


class Nvfp4OnlineConfig(ConfigOfOtherWords):
    """fp4 weights and activations with an fp8 scale for 16 columns and one scale for all.

    Of an fp8 file, linear layers stay what they are, and experts become NVFP4.
    """

    name = "nvfp4_online"
    online_schemes = SHORTHANDS["nvfp4"]

    def __init__(self) -> None:
        super().__init__()
        self._found: set[bool] = set()  # whether a stored layer is quantized again

    @classmethod
    def read(cls, config: Mapping[str, Any]) -> QuantizationConfig:
        """Return the config of an fp8 file, ModelOpt's or another."""
        words = _ModelOptFp8 if "quant_algo" in config else Fp8Config
        return words.from_config(config)

    def scheme_for(self, facts: LayerFacts) -> Decision:
        """Return what a layer becomes."""
        decision = super().scheme_for(facts)
        is_own = decision.scheme is not None and facts.kind == "experts"
        if facts.stored and not self.is_online:
            self._found.add(is_own)
        if self.is_online or decision.scheme is None or not is_own:
            return decision
        resolution = self._resolve(self.name, facts.kind, ())
        because = f"stored as {decision.scheme.weight}; {resolution.because}"
        return Decision.quantized(resolution.scheme, because, f"quantization = {self.name!r}")

    def notes(self) -> tuple[str, ...]:
        """Return what the reader found, and whether the name made no difference."""
        none = (
            f"no experts are stored in fp8, which {self.name} quantizes again: it changes nothing"
        )
        return (*super().notes(), *([none] if self._found == {False} else []))

    def slots(self, scheme: Scheme, n: int, k: int, facts: LayerFacts) -> tuple[Slot, ...]:
        """Return the tensors that the file stores."""
        return super().slots(self._stored(scheme, facts), n, k, facts)

    def weight_shape(self, scheme: Scheme, facts: LayerFacts) -> tuple[int, ...]:
        """Return the shape (N, K) of a layer's weight."""
        return super().weight_shape(self._stored(scheme, facts), facts)

    def decode(
        self, scheme: Scheme, stored: Sequence[Mapping[str, Tensor]], facts: LayerFacts
    ) -> CanonicalWeight:
        """Return the canonical weight; of experts in fp8, quantized again shard by shard."""
        from quantdock.numerics.canonical import join, quantize_weight

        own = self._stored(scheme, facts)
        weight = super().decode(own, stored, facts)
        if own is scheme:
            return weight
        shards = [segment.dequantize() for segment in weight.segments]
        made = join([quantize_weight(shard, scheme.weight) for shard in shards])
        return replace(made, value_steps=(f"quantized again, from {own.weight}",))

    def _stored(self, scheme: Scheme, facts: LayerFacts) -> Scheme:
        """Return what the file stores a layer in: ``scheme``, but for experts in fp8."""
        if self.is_online or facts.kind != "experts":
            return scheme
        own = self.reader_of(facts).scheme_for(facts).scheme
        return scheme if own is None else own.weight_only()
