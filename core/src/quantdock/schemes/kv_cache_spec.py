"""KVCacheSpec: how keys and values are encoded between the tokens of a generation.

>>> spec = KVCacheSpec(element="fp8_e4m3")
>>> str(spec), spec.bytes_per_token(heads=3, width=64 + 64)
('fp8_e4m3[tensor]', 384)
>>> str(KVCacheSpec(element="int8", granularity="token")), parse_kv_element("fp8")
('int8[token]:dynamic', 'fp8_e4m3')
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from quantdock.errors import FormatError
from quantdock.formats import ELEMENTS

# What one scale covers: all keys of a layer (and another all its values), one head of them, or one
# token's vector of one head. The last is computed from the vector itself and kept beside its codes.
GRANULARITIES = ("tensor", "head", "token")
SCALE_BYTES = 4  # of one f32
# What users and files call the elements that a cache can be kept in.
ELEMENT_WORDS: Mapping[str, str] = MappingProxyType(
    {
        **dict.fromkeys(("fp8", "fp8_e4m3", "e4m3", "float8_e4m3fn"), "fp8_e4m3"),
        **dict.fromkeys(("fp8_e5m2", "e5m2", "float8_e5m2"), "fp8_e5m2"),
        "int8": "int8",
    }
)
_ELEMENTS = frozenset(
    {"fp8_e4m3", "fp8_e5m2", "fp8_e4m3fnuz", "fp8_e5m2fnuz", "int8"}
)  # a byte a code


@dataclass(frozen=True, slots=True, kw_only=True)
class KVCacheSpec:
    """How keys, and values likewise, are encoded: a code q means ``scale * q``.

    Scales per tensor and per head are static: they come with the checkpoint.
    """

    element: str  # one byte a code
    granularity: str = "tensor"  # one of GRANULARITIES

    def __post_init__(self) -> None:
        if self.element not in _ELEMENTS or self.granularity not in GRANULARITIES:
            raise FormatError(
                f"No KV cache is kept as {self.element}[{self.granularity}].",
                why=[
                    f"elements: {', '.join(sorted(_ELEMENTS))}",
                    f"what one scale covers: {', '.join(GRANULARITIES)}",
                ],
                todo="Choose one of each.",
            )

    @property
    def dynamic(self) -> bool:
        """Return whether scales are computed from the values at run time."""
        return self.granularity == "token"

    @property
    def is_float(self) -> bool:
        """Return whether codes are floats, which are usable without a calibrated scale."""
        return ELEMENTS[self.element].is_float

    def bytes_per_token(self, heads: int, width: int) -> int:
        """Return the bytes one token takes in one layer.

        Args:
            width: values of one head's key and of its value together.
        """
        scales = 2 * SCALE_BYTES if self.dynamic else 0
        return heads * (width + scales)

    def __str__(self) -> str:
        return f"{self.element}[{self.granularity}]" + (":dynamic" if self.dynamic else "")


def parse_kv_element(word: str) -> str | None:
    """Return the element that a user's or a file's ``word`` names; None for another word."""
    return ELEMENT_WORDS.get(word.strip().lower())
