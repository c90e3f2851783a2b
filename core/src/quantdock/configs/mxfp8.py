"""mxfp8: fp8 weights with one power-of-two scale for 32 columns (OCP MX 1.0).

>>> config = Mxfp8Config.from_config({"quant_method": "mxfp8"})
>>> str(config.specs[0])
'fp8_e4m3[1x32]:e8m0:ceil'
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Self

from quantdock.configs.fields import Fields
from quantdock.configs.fp8 import ELEMENT_WORDS, IGNORE_FIELDS
from quantdock.configs.fp8_checkpoint import Fp8CheckpointConfig
from quantdock.configs.kv_cache_field import read_kv_cache
from quantdock.formats import EXPONENT_BYTES, QuantSpec
from quantdock.schemes.shorthands import SHORTHANDS

TILE = (1, 32)


class Mxfp8Config(Fp8CheckpointConfig):
    """A checkpoint that says ``mxfp8``, or a 16-bit one quantized to it at load.

    Scales are exponent bytes, rounded up so that nothing saturates, on weights and activations.
    """

    name = "mxfp8"
    online_schemes = SHORTHANDS["mxfp8"]
    scale_dtypes: ClassVar[tuple[str, ...]] = EXPONENT_BYTES

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Self:
        """Return the config of an mxfp8 checkpoint.

        Raises:
            ConfigError: a tile other than [1, 32], static activations, or an impossible value.
        """
        fields = Fields(config, cls.name)
        if fields.tile("weight_block_size") not in (None, TILE):
            fields.refuse("weight_block_size", "[1, 32], or null")
        if fields.get("group_size") not in (None, TILE[1]):
            fields.refuse("group_size", "32, or null")
        fields.choice("scale_fmt", {"ue8m0": None, "e8m0": None}, None)
        fields.choice("activation_scheme", {"dynamic": None}, None)
        rows, cols = TILE
        spec = QuantSpec(
            element=fields.choice("fmt", ELEMENT_WORDS, "fp8_e4m3"),
            rows=rows,
            cols=cols,
            scale="e8m0",
            rounding="ceil",
        )
        return cls(
            [spec],
            ignored=fields.names(*IGNORE_FIELDS),
            kv_cache=read_kv_cache(fields),
            extra=fields.rest(),
        )
