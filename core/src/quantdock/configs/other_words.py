"""ConfigOfOtherWords: a method whose files describe themselves in the words of another one.

>>> from quantdock.configs.fp8 import Fp8Config
>>> class Renamed(ConfigOfOtherWords):
...     name = "renamed"
...     @classmethod
...     def read(cls, config):
...         return Fp8Config.from_config(config)
>>> config = Renamed.from_config({"quant_method": "fp8", "weight_block_size": [128, 128]})
>>> str(config.scheme_for(LayerFacts(prefix="model.layers.0.mlp.up_proj")).scheme.weight)
'fp8_e4m3[128x128]'
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self

from quantdock.config import QuantizationConfig
from quantdock.configs.online import OnlineConfig
from quantdock.methods.slot import Slot
from quantdock.schemes import Decision, LayerFacts, Scheme

if TYPE_CHECKING:
    from torch import Tensor

    from quantdock.dispatch import Dispatch
    from quantdock.numerics.canonical import CanonicalWeight


class ConfigOfOtherWords(OnlineConfig):
    """A method that reads files as other configs do; at load it may quantize, too.

    Attributes:
        words: the config that knows the file's words; None where 16 bits are quantized at load.
    """

    words: QuantizationConfig | None = None

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Self:
        """Return the config of a file.

        Raises:
            ConfigError: a field has an impossible value, or the file is of another kind.
            MethodNotYetError: its kind is known and cannot be run yet.
        """
        made = cls()
        made.words = cls.read(config)
        made.kv_cache = made.words.kv_cache
        return made

    @classmethod
    @abstractmethod
    def read(cls, config: Mapping[str, Any]) -> QuantizationConfig:
        """Return the config that reads the file; raises as ``from_config`` does."""

    def reader_of(self, facts: LayerFacts) -> QuantizationConfig:
        """Return what reads the tensors of a layer."""
        assert self.words is not None, "a config of a file has the words of the file"
        return self.words

    def readers(self) -> tuple[QuantizationConfig, ...]:
        """Return all that read layers of the file."""
        return () if self.words is None else (self.words,)

    def scheme_for(self, facts: LayerFacts) -> Decision:
        """Return what the layer's reader makes of it."""
        if self.is_online:
            return super().scheme_for(facts)
        reader = self.reader_of(facts)
        reader.packed_modules_mapping = self.packed_modules_mapping
        decision = reader.scheme_for(facts)
        if decision.scheme is None:
            return decision
        return replace(decision, scheme=self.executed(decision.scheme))

    def weight_shape(self, scheme: Scheme, facts: LayerFacts) -> tuple[int, ...]:
        """Return the shape (N, K) of a layer's weight."""
        if self.is_online:
            return super().weight_shape(scheme, facts)
        return self.reader_of(facts).weight_shape(scheme, facts)

    def slots(self, scheme: Scheme, n: int, k: int, facts: LayerFacts) -> tuple[Slot, ...]:
        """Return the tensors of one shard of a layer."""
        if self.is_online:
            return super().slots(scheme, n, k, facts)
        return self.reader_of(facts).slots(scheme, n, k, facts)

    def decode(
        self, scheme: Scheme, stored: Sequence[Mapping[str, Tensor]], facts: LayerFacts
    ) -> CanonicalWeight:
        """Return the canonical weight, by the layer's reader."""
        if self.is_online:
            return super().decode(scheme, stored, facts)
        return self.reader_of(facts).decode(scheme, stored, facts)

    def bind(self, dispatch: Dispatch) -> Self:
        """Return self, and all readers, tied to a platform."""
        for reader in self.readers():
            reader.bind(dispatch)
        return super().bind(dispatch)

    def unmatched(self) -> tuple[str, ...]:
        """Return the entries of lists and overrides that have matched no layer so far."""
        return (*super().unmatched(), *(u for reader in self.readers() for u in reader.unmatched()))

    def notes(self) -> tuple[str, ...]:
        """Return what the readers found."""
        return (*super().notes(), *(n for reader in self.readers() for n in reader.notes()))
