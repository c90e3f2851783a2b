"""KVCacheSpec: how keys and values are encoded between the tokens of a generation.

>>> spec = KVCacheSpec(element="fp8_e4m3")
>>> str(spec), spec.bytes_per_token(heads=3, width=64 + 64)
('fp8_e4m3[tensor]', 384)
>>> str(KVCacheSpec(element="int8", granularity="token")), parse_kv_element("fp8")
('int8[token]:dynamic', 'fp8_e4m3')
>>> KVCacheSpec(element="fp4_e2m1", granularity="group").bytes_per_token(heads=3, width=64 + 64)
216
>>> str(NVFP4)
'fp4_e2m1[group]:second[tensor]'
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from quantdock.errors import FormatError
from quantdock.formats import ELEMENTS

# What one scale covers: all keys of a layer (and another all its values), one head of them, one
# token's vector of one head, or GROUP_SIZE numbers of that. The last two are computed from the
# vector itself and kept beside its codes: as f32, and as the exponent of a power of two; or as an
# e4m3 number, under a static scale of all keys, or values (NVFP4).
GRANULARITIES = ("tensor", "head", "token", "group")
SCALE_BYTES = 4  # of one f32
GROUP_SIZE = 16
# What users and files call the elements that a cache can be kept in.
ELEMENT_WORDS: Mapping[str, str] = MappingProxyType(
    {
        **dict.fromkeys(("fp8", "fp8_e4m3", "e4m3", "float8_e4m3fn"), "fp8_e4m3"),
        **dict.fromkeys(("fp8_e5m2", "e5m2", "float8_e5m2"), "fp8_e5m2"),
        "int8": "int8",
        **dict.fromkeys(("fp4", "fp4_e2m1"), "fp4_e2m1"),
    }
)
_ELEMENTS = frozenset({"fp8_e4m3", "fp8_e5m2", "fp8_e4m3fnuz", "fp8_e5m2fnuz", "int8", "fp4_e2m1"})


@dataclass(frozen=True, slots=True, kw_only=True)
class KVCacheSpec:
    """How keys, and values likewise, are encoded: a code q means ``scale * q``.

    Scales per tensor and per head are static: they come with the checkpoint.
    """

    element: str  # one byte a code, or half of one
    granularity: str = "tensor"  # one of GRANULARITIES
    has_second: bool = False  # of groups: a static scale stands above theirs

    def __post_init__(self) -> None:
        is_grouped = self.granularity == "group"
        is_flat = self.has_second and not is_grouped
        is_known = not is_flat and self.element in _ELEMENTS and self.granularity in GRANULARITIES
        if not is_known or is_grouped is not (self.element == "fp4_e2m1"):
            raise FormatError(
                f"No KV cache is kept as {self.element}[{self.granularity}].",
                why=[
                    f"elements: {', '.join(sorted(_ELEMENTS))}",
                    f"what one scale covers: {', '.join(GRANULARITIES)}",
                ],
                todo="Choose one of each; fp4_e2m1 goes with group, and nothing else does.",
            )

    @property
    def dynamic(self) -> bool:
        """Return whether all scales are computed from the values at run time."""
        return self.granularity in ("token", "group") and not self.has_second

    @property
    def is_float(self) -> bool:
        """Return whether codes are floats, which are usable without a calibrated scale."""
        return ELEMENTS[self.element].is_float

    def bytes_per_token(self, heads: int, width: int) -> int:
        """Return the bytes one token takes in one layer.

        Args:
            width: values of one head's key and of its value together.
        """
        if self.granularity == "group":
            return heads * (width // 2 + width // GROUP_SIZE)
        scales = 2 * SCALE_BYTES if self.dynamic else 0
        return heads * (width + scales)

    def __str__(self) -> str:
        mark = ":second[tensor]" if self.has_second else ":dynamic" if self.dynamic else ""
        return f"{self.element}[{self.granularity}]{mark}"


NVFP4 = KVCacheSpec(element="fp4_e2m1", granularity="group", has_second=True)


def dynamic_kv_spec(element: str) -> KVCacheSpec:
    """Return how ``element`` is kept with scales that are computed at run time.

    >>> str(dynamic_kv_spec("int8")), str(dynamic_kv_spec("fp4_e2m1"))
    ('int8[token]:dynamic', 'fp4_e2m1[group]:dynamic')
    """
    return KVCacheSpec(element=element, granularity="group" if element == "fp4_e2m1" else "token")


def parse_kv_element(word: str) -> str | None:
    """Return the element that a user's or a file's ``word`` names; None for another word."""
    return ELEMENT_WORDS.get(word.strip().lower())
