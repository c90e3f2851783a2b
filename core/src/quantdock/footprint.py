"""Footprint: how many bytes a kernel keeps of a weight, as facts for the plan.

>>> from quantdock.formats import parse_spec
>>> Footprint().weight_bytes(parse_spec("uint4[1x32]:zero"), 64, 128)
5376
>>> Footprint(scale_bytes=1).weight_bytes(parse_spec("fp4_e2m1[1x32]:e8m0:even"), 64, 128)
4352
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from quantdock.formats import ELEMENTS, QuantSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Footprint:
    """What a kernel keeps of each code and each scale, however files store them.

    Without more it is the reference's: codes of at most 4 bits lie packed, in 1, 2 or 4 bits each,
    others take a byte; scales are f32.
    """

    least_bits: int = 1  # that a code takes
    scale_bytes: int = 4  # of a scale of the first level, in all that it is kept as
    zero_bytes: int = 1  # that a scale takes more where it has a zero point

    def weight_bytes(self, spec: QuantSpec, n: int, k: int) -> int:
        """Return the bytes of the codes, scales and zero points of a weight [n, k]."""
        bits = max(ELEMENTS[spec.element].memory_bits, self.least_bits)
        per_scale = self.scale_bytes + (self.zero_bytes if spec.zero else 0)
        return n * -(-k * bits // 8) + prod(spec.grid(n, k)) * per_scale


PLAIN = Footprint()
