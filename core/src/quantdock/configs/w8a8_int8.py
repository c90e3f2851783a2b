"""w8a8_int8: int8 weights with one scale a row, activations one a token.

>>> config = W8A8Int8Config.from_config({"quant_method": "w8a8_int8", "ignore": ["lm_head"]})
>>> from quantdock.schemes import LayerFacts
>>> str(config.scheme_for(LayerFacts(prefix="model.layers.0.mlp.up_proj")).scheme)
'int8[1x*] x int8[1x*]:dynamic'
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

from quantdock.configs.compressed_words import require_kind
from quantdock.configs.fields import Fields
from quantdock.configs.fp8 import IGNORE_FIELDS
from quantdock.configs.int8_checkpoint import Int8CheckpointConfig
from quantdock.configs.kv_cache_field import read_kv_cache
from quantdock.schemes.shorthands import SHORTHANDS


class W8A8Int8Config(Int8CheckpointConfig):
    """A checkpoint that says ``w8a8_int8``, or a 16-bit one quantized to it at load.

    A file has ``weight`` int8 [N, K] and ``weight_scale`` [N, 1].
    """

    name = "w8a8_int8"
    online_schemes = SHORTHANDS["w8a8_int8"]
    stored_scheme = SHORTHANDS["w8a8_int8"][0]

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Self:
        """Return the config of a w8a8_int8 checkpoint.

        Raises:
            ConfigError: static activations, an impossible value, or a compressed-tensors file of
                another kind.
        """
        require_kind(cls.name, config, cls.stored_scheme.weight)
        fields = Fields(config, cls.name)
        fields.choice("activation_scheme", {"dynamic": None}, None)
        return cls(
            ignored=fields.names("ignore", *IGNORE_FIELDS),
            kv_cache=read_kv_cache(fields),
            extra=fields.rest(),
        )
