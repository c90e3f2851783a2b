"""Int8CheckpointConfig: what the configs of int8 checkpoints share. Subclasses read the JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from quantdock.configs.online import OnlineConfig
from quantdock.configs.stored_integers import StoredIntegers
from quantdock.methods.slot import Slot
from quantdock.schemes import Decision, LayerFacts, Scheme

if TYPE_CHECKING:
    from torch import Tensor

    from quantdock.numerics.canonical import CanonicalWeight


class Int8CheckpointConfig(StoredIntegers, OnlineConfig):
    """A checkpoint of int8 codes, one a byte, with scales; or a 16-bit one quantized at load.

    Attributes:
        stored_scheme: of every quantized layer of a checkpoint.
    """

    stored_scheme: Scheme

    def scheme_for(self, facts: LayerFacts) -> Decision:
        """Return what the file makes of a layer, or what becomes of a 16-bit one."""
        if self.is_online:
            return OnlineConfig.scheme_for(self, facts)
        return super().scheme_for(facts)

    def usual(self, facts: LayerFacts) -> Decision:
        """Return the one scheme of the checkpoint."""
        because = "the checkpoint says so of all layers"
        return Decision.quantized(self.stored_scheme, because, self._stated)

    def slots(self, scheme: Scheme, n: int, k: int, facts: LayerFacts) -> tuple[Slot, ...]:
        """Return the weight and its scale; online, the weight alone."""
        if self.is_online:
            return OnlineConfig.slots(self, scheme, n, k, facts)
        return super().slots(scheme, n, k, facts)

    def decode(
        self, scheme: Scheme, stored: Sequence[Mapping[str, Tensor]], facts: LayerFacts
    ) -> CanonicalWeight:
        """Return the codes and scales as the file has them; or quantize, where online."""
        if self.is_online:
            return OnlineConfig.decode(self, scheme, stored, facts)
        return super().decode(scheme, stored, facts)
