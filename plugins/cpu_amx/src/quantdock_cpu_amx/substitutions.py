"""What x86 CPUs run instead of a scheme that they have no instructions for."""

from __future__ import annotations

from quantdock.kernel import Substitution
from quantdock.schemes import SchemeSet, SpecSet

_FP8 = SpecSet(elements=frozenset({"fp8_e4m3", "fp8_e5m2"}))
_INT4 = SpecSet(
    elements=frozenset({"int4", "uint4"}), granularities=frozenset({"channel", "group"})
)

SUBSTITUTIONS = (
    Substitution(
        name="fp8_weight_only",
        source=SchemeSet(weight=_FP8, activation=_FP8),
        change="weight_only",
        needs=frozenset({"amx_bf16"}),
        lacks=frozenset({"amx_fp8"}),
        why="AMX multiplies bfloat16 tiles; fp8 weights are widened as they are read and "
        "activations stay bfloat16",
        accuracy="closer to 16-bit than asked: activations are not quantized",
    ),
    # Declared for the kernel that will execute it; without one nothing becomes less exact.
    Substitution(
        name="int4_with_int8_tokens",
        source=SchemeSet(weight=_INT4),
        change="int8_per_token",
        needs=frozenset({"amx_int8"}),
        needs_kernel=True,
        why="AMX multiplies int8 tiles; 4-bit codes are widened to int8 as they are read, and each "
        "token is rounded to int8",
        accuracy="less exact than asked: each token has 255 steps, its largest value at the end",
    ),
)
