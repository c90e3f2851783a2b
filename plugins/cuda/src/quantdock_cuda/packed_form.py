"""What kernels of packed codes know of words: how many codes, where, and how they are scaled."""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd

from quantdock_triton.packed_layout import WORD_BITS


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedForm:
    """What such a kernel is compiled for: a packing, and how codes become numbers."""

    bits: int
    plane: int
    per_group: int  # planes that share a scale; 0: all
    folded: bool = False  # weights are scaled, in 16 bits, and not their sums
    is_float: bool = False  # codes are fp8_e4m3, or, where ``pieces`` is not 0, fp4_e2m1
    scale: str = "f32"  # or bytes beside the words: "e4m3", "e8m0"
    pieces: int = 0  # of a plane, that have a byte each

    @property
    def addends(self) -> int:
        """Return how many numbers are added to the codes of two words."""
        return 0 if self.is_float else 1 if self.bits == 4 else 2

    @property
    def planes(self) -> int:
        """Return the planes of a block."""
        return WORD_BITS // self.bits

    @property
    def run(self) -> int:
        """Return how many neighbouring planes of a block share a scale."""
        return gcd(self.per_group, self.planes)

    @property
    def middle(self) -> int:
        """Return the zero point of codes that were signed."""
        return 1 << self.bits - 1
