"""What ROCm devices run instead of a scheme that they have no instructions for."""

from __future__ import annotations

from quantdock.kernel import Substitution
from quantdock.schemes import SchemeSet, SpecSet

_FP8 = SpecSet(elements=frozenset({"fp8_e4m3", "fp8_e5m2"}))

SUBSTITUTIONS = (
    Substitution(
        name="fp8_weight_only",
        source=SchemeSet(weight=_FP8, activation=_FP8),
        change="weight_only",
        lacks=frozenset({"fp8_mma"}),
        why="the device has no fp8 matrix units; fp8 weights are widened "
        "to 16 bits as they are read",
        accuracy="closer to 16-bit than asked: activations are not quantized",
    ),
)
