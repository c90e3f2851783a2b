"""StoredIntegers: an integer checkpoint with the tensors that ``integer_tensors`` names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from quantdock.configs.header_check import Misfit
from quantdock.configs.integer_checkpoint import IntegerCheckpointConfig
from quantdock.configs.integer_tensors import BYTES, integer_slots, misfit, stored_shape
from quantdock.configs.matcher import Match
from quantdock.configs.stored import HEADERS, WEIGHT_SCALES
from quantdock.methods.slot import Slot
from quantdock.schemes import Decision, LayerFacts, Scheme, StoredTensor

if TYPE_CHECKING:
    from torch import Tensor

    from quantdock.numerics.canonical import CanonicalWeight


class StoredIntegers(IntegerCheckpointConfig):
    """Checks, slots and decoding; subclasses say what is quantized, and where codes are."""

    codes = BYTES

    def misfit(self, scheme: Scheme, tensors: Mapping[str, StoredTensor]) -> Misfit | None:
        """Return what is wrong with the headers of one shard or expert; None: nothing."""
        return misfit(scheme, tensors, self.codes)

    def _plain(
        self, facts: LayerFacts, weight: StoredTensor, listed: Match[None] | None
    ) -> Decision:
        """Refuse float weights with scales: a file of weights that are yet to be quantized."""
        scales = [key for key in facts.stored or () if key.rpartition(".")[2] in WEIGHT_SCALES]
        if scales:
            because = (
                f"its weight is stored as {weight.dtype} beside {', '.join(scales)}: the file was "
                "saved before it was compressed"
            )
            return Decision.refused(because, HEADERS)
        return super()._plain(facts, weight, listed)

    def weight_shape(self, scheme: Scheme, facts: LayerFacts) -> tuple[int, ...]:
        """Return (N, K) as codes and scales show it."""
        return stored_shape(scheme.weight, facts.stored or {}, self.codes)

    def slots(self, scheme: Scheme, n: int, k: int, facts: LayerFacts) -> tuple[Slot, ...]:
        """Return codes, scales, and zero points, group index and input scale where they are."""
        return integer_slots(scheme, n, k, facts, self.codes)

    def decode(
        self, scheme: Scheme, stored: Sequence[Mapping[str, Tensor]], facts: LayerFacts
    ) -> CanonicalWeight:
        """Return the codes as meant, with their scales and zero points."""
        from quantdock.configs.integer_codes import decode_integers

        return decode_integers(scheme, stored, facts.prefix)
