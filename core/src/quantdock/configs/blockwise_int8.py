"""blockwise_int8: int8 weights with one scale a block, activations one a group of a token.

>>> config = BlockwiseInt8Config.from_config({"weight_block_size": [128, 64]})
>>> from quantdock.schemes import LayerFacts
>>> str(config.scheme_for(LayerFacts(prefix="model.layers.0.mlp.up_proj")).scheme)
'int8[128x64] x int8[1x64]:dynamic'
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

from quantdock.configs.fields import Fields
from quantdock.configs.fp8 import IGNORE_FIELDS
from quantdock.configs.int8_checkpoint import Int8CheckpointConfig
from quantdock.configs.kv_cache_field import read_kv_cache
from quantdock.formats import QuantSpec
from quantdock.schemes import Scheme


class BlockwiseInt8Config(Int8CheckpointConfig):
    """A checkpoint that says ``blockwise_int8``: ``weight`` int8, ``weight_scale_inv`` by blocks.

    The scale multiplies, whatever its name says.
    """

    name = "blockwise_int8"

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Self:
        """Return the config of a blockwise_int8 checkpoint.

        Raises:
            ConfigError: no block size, static activations, or an impossible value.
        """
        fields = Fields(config, cls.name)
        fields.choice("activation_scheme", {"dynamic": None}, None)
        block = fields.tile("weight_block_size")
        if block is None:
            fields.refuse("weight_block_size", "two positive integers (rows, columns)")
        read = cls(
            ignored=fields.names("ignore", *IGNORE_FIELDS),
            kv_cache=read_kv_cache(fields),
            stated=f"weight_block_size = {list(block)}",
            extra=fields.rest(),
        )
        rows, cols = block
        read.stored_scheme = Scheme(
            weight=QuantSpec(element="int8", rows=rows, cols=cols),
            activation=QuantSpec(element="int8", rows=1, cols=cols, dynamic=True),
        )
        return read
