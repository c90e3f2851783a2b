"""What CUDA devices run instead of a scheme that they have no instructions, or no kernel, for.

An exact kernel comes first, so a row without ``lacks`` stands back where one is added.
"""

from __future__ import annotations

from quantdock.kernel import Substitution
from quantdock.schemes import SchemeSet, SpecSet

_FP8 = SpecSet(elements=frozenset({"fp8_e4m3", "fp8_e5m2"}))
_E5M2 = SpecSet(elements=frozenset({"fp8_e5m2"}))
_SMALL_FLOATS = frozenset({"fp4_e2m1", "fp6_e2m3", "fp6_e3m2"})
_SMALL_INTEGERS = frozenset(f"{sign}int{bits}" for sign in ("", "u") for bits in range(2, 8))
_INT8 = frozenset({"int8", "uint8"})
_ACCURACY = "closer to 16-bit than asked: activations are not quantized"

SUBSTITUTIONS = (
    Substitution(
        name="fp8_weight_only",
        source=SchemeSet(weight=_FP8, activation=_FP8),
        change="weight_only",
        lacks=frozenset({"fp8_mma"}),
        why="the device has no fp8 tensor cores; fp8 weights are widened "
        "to 16 bits as they are read",
        accuracy=_ACCURACY,
    ),
    Substitution(
        name="e5m2_weight_only",
        source=SchemeSet(weight=_E5M2, activation=_FP8),
        change="weight_only",
        why="no kernel multiplies e5m2 weights with fp8 activations; weights are widened "
        "to 16 bits as they are read",
        accuracy=_ACCURACY,
    ),
    Substitution(
        name="small_weight_only",
        source=SchemeSet(
            weight=SpecSet(elements=_SMALL_FLOATS | _SMALL_INTEGERS, act_order=None, second=None),
            activation=SpecSet(second=None),
            input_multiplier=True,
        ),
        change="weight_only",
        why="no kernel multiplies weights of less than 8 bits with quantized activations; weights "
        "are widened to 16 bits as they are read",
        accuracy=_ACCURACY,
    ),
    Substitution(
        name="int8_weight_only",
        source=SchemeSet(
            weight=SpecSet(elements=_INT8, act_order=None),
            activation=SpecSet(),
            input_multiplier=True,
        ),
        change="weight_only",
        needs=frozenset({"int8_mma", "cp_async"}),
        why="no kernel multiplies int8 with zero points of weights or activations, or after a "
        "multiplier of the input; weights are widened to 16 bits as they are read",
        accuracy=_ACCURACY,
    ),
)
