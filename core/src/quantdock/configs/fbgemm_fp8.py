"""fbgemm_fp8: fp8 weights with one scale a row, activations one a token (Llama 3.1 405B).

Its ``activation_scale_ub`` bounds the largest magnitude that a token's scale is made of, so that
FBGEMM's kernels clip what lies beyond. The bound is read and not applied. A token without values
beyond it comes out the same bit for bit. A token with one keeps that value and pays with coarser
steps for its others, which is nearer to the unquantized model in every value that would have been
clipped; and one scheme serves every dialect with a scale a token.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

from quantdock.configs.fields import Fields
from quantdock.configs.fp8 import IGNORE_FIELDS
from quantdock.configs.fp8_checkpoint import Fp8CheckpointConfig
from quantdock.configs.fp8_tensors import bound_slot
from quantdock.configs.kv_cache_field import read_kv_cache
from quantdock.configs.w8a8_fp8 import CHANNEL_SPECS
from quantdock.methods.slot import Slot
from quantdock.schemes import LayerFacts, Scheme

_USUAL_BOUND = 1200.0  # what the tools that write these files take


class FbgemmFp8Config(Fp8CheckpointConfig):
    """A checkpoint that says ``fbgemm_fp8``: ``weight``, ``weight_scale`` [N, 1] and a bound.

    Attributes:
        activation_scale_ub: largest activation that FBGEMM would not clip.
    """

    name = "fbgemm_fp8"
    activation_scale_ub: float = _USUAL_BOUND

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Self:
        """Return the config of an fbgemm_fp8 checkpoint; raises ConfigError for its fields."""
        fields = Fields(config, cls.name)
        bound = fields.positive("activation_scale_ub") or _USUAL_BOUND
        read = cls(
            CHANNEL_SPECS,
            ignored=fields.names(*IGNORE_FIELDS),
            kv_cache=read_kv_cache(fields),
            extra=fields.rest(),
        )
        read.activation_scale_ub = bound
        return read

    def slots(self, scheme: Scheme, n: int, k: int, facts: LayerFacts) -> tuple[Slot, ...]:
        """Return the slots of the weight, and the bound that some files store beside it."""
        bound = bound_slot("input_scale_ub", self.activation_scale_ub)
        return (*super().slots(scheme, n, k, facts), bound)

    def notes(self) -> tuple[str, ...]:
        """Return where the tensors decided, and that the bound is not applied."""
        note = (
            f"activations beyond activation_scale_ub = {self.activation_scale_ub:g} are kept, "
            "not clipped"
        )
        return (*super().notes(), note)
