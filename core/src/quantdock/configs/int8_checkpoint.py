"""Int8CheckpointConfig: what the configs of int8 checkpoints share. Subclasses read the JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from quantdock.configs.integer_checkpoint import IntegerCheckpointConfig
from quantdock.configs.integer_tensors import faults, integer_slots
from quantdock.configs.online import OnlineConfig
from quantdock.methods.slot import Slot
from quantdock.schemes import Decision, LayerFacts, Scheme, StoredTensor

if TYPE_CHECKING:
    from torch import Tensor

    from quantdock.numerics.canonical import CanonicalWeight


class Int8CheckpointConfig(IntegerCheckpointConfig, OnlineConfig):
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

    def misfit(self, scheme: Scheme, name: str, tensors: Mapping[str, StoredTensor]) -> str:
        """Return what is wrong with the headers of a layer; empty: nothing."""
        return "; ".join(faults(name, scheme, tensors))

    def slots(self, scheme: Scheme, n: int, k: int, facts: LayerFacts) -> tuple[Slot, ...]:
        """Return the weight and its scale; online, the weight alone."""
        if self.is_online:
            return OnlineConfig.slots(self, scheme, n, k, facts)
        return integer_slots(scheme, n, k, facts)

    def decode(
        self, scheme: Scheme, stored: Sequence[Mapping[str, Tensor]], facts: LayerFacts
    ) -> CanonicalWeight:
        """Return the codes and scales as the file has them; or quantize, where online."""
        if self.is_online:
            return OnlineConfig.decode(self, scheme, stored, facts)
        from quantdock.configs.integer_codes import decode_integers

        return decode_integers(scheme, stored, facts.prefix)
