"""The formats of compressed-tensors: how codes are stored, and what a format fixes of its scales.

>>> FORMATS["nvfp4-pack-quantized"].storage_of(is_float=True, bits=4)
'bytes'
>>> FORMATS["nvfp4-pack-quantized"].storage_of(is_float=False, bits=4) is None
True
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

MX_GROUP, NV_GROUP = 32, 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """One format; ``floats`` and ``integers`` say how codes of that type are stored.

    plain (as weights, no codes), floats or integers of one byte, words of 32 bits, or bytes that
    hold several codes; "" stands for never. ``bits`` are those of its floats. ``group``: as many
    columns share a scale, which is e8m0 or e4m3; None: what the group says, in f32.
    """

    floats: str = ""
    integers: str = ""
    bits: int = 8
    group: int | None = None
    scale: str = "f32"

    @property
    def is_plain(self) -> bool:
        """Return whether nothing is stored quantized."""
        return self.floats == "plain"

    def storage_of(self, *, is_float: bool, bits: int) -> str | None:
        """Return how codes of this type are stored; None where the format has no such codes."""
        if is_float and bits != self.bits and not self.is_plain:
            return None
        return (self.floats if is_float else self.integers) or None


_PLAIN = Format(floats="plain", integers="plain")
FORMATS: Mapping[str, Format] = MappingProxyType(
    {
        "dense": _PLAIN,
        "fakequant": _PLAIN,
        "naive-quantized": Format(floats="floats", integers="integers"),
        "float-quantized": Format(floats="floats"),
        "int-quantized": Format(integers="integers"),
        "pack-quantized": Format(integers="words"),
        "mxfp8-quantized": Format(floats="floats", group=MX_GROUP, scale="e8m0"),
        "mxfp6-pack-quantized": Format(floats="bytes", bits=6, group=MX_GROUP, scale="e8m0"),
        "mxfp4-pack-quantized": Format(floats="bytes", bits=4, group=MX_GROUP, scale="e8m0"),
        "nvfp4-pack-quantized": Format(floats="bytes", bits=4, group=NV_GROUP, scale="e4m3"),
    }
)
SPARSE = ("marlin-24", "sparse-bitmask", "sparse-24-bitmask")
