"""w8a8_fp8: fp8 weights with one scale a row, activations one a token."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

from quantdock.configs.compressed_words import require_kind
from quantdock.configs.fields import Fields
from quantdock.configs.fp8 import IGNORE_FIELDS
from quantdock.configs.fp8_checkpoint import Fp8CheckpointConfig
from quantdock.configs.kv_cache_field import read_kv_cache
from quantdock.formats import QuantSpec

# The row scale that the name promises; one for the whole weight is taken where a file has that.
CHANNEL_SPECS = (QuantSpec(element="fp8_e4m3", rows=1), QuantSpec(element="fp8_e4m3"))


class W8A8Fp8Config(Fp8CheckpointConfig):
    """A checkpoint that says ``w8a8_fp8``: ``weight`` and ``weight_scale`` [N, 1]."""

    name = "w8a8_fp8"

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Self:
        """Return the config of a w8a8_fp8 checkpoint.

        Raises:
            ConfigError: static activations, an impossible value, or a compressed-tensors file of
                another kind.
        """
        require_kind(cls.name, config, *CHANNEL_SPECS)
        fields = Fields(config, cls.name)
        fields.choice("activation_scheme", {"dynamic": None}, None)
        return cls(
            CHANNEL_SPECS,
            ignored=fields.names(*IGNORE_FIELDS, "ignore"),
            kv_cache=read_kv_cache(fields),
            extra=fields.rest(),
        )
