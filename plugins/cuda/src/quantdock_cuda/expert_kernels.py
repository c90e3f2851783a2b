"""The kernels that run the experts of a layer whole, as facts: what linear kernels take, mostly.

Importing this file loads neither torch nor Triton.
"""

from __future__ import annotations

from dataclasses import replace

from quantdock.kernel import Kernel
from quantdock.problem import ExpertSet
from quantdock.schemes import SchemeSet, SpecSet
from quantdock_cuda.kernels import (
    FP8,
    INT8,
    PACKED,
    PACKED_FLOAT,
    SMALL_FLOAT,
    WEIGHT_ONLY,
)

_ANY = ExpertSet(
    activations=frozenset({"silu", "gelu", "gelu_tanh", "relu", "relu2", "clamped_swiglu"}),
    orders=frozenset({"gate_up", "interleaved", "up"}),
    takes_bias=True,
)


# Of x beside weights alone: the loop over experts, which linear kernels make, takes 32 bits.
_16_BITS = frozenset({"bfloat16", "float16"})
_FINER = "where all of an expert's tokens would have one computed scale, each has its own"


# What w13 returns is rounded to 16 bits, so some of what w2 gets has a neighbouring code: more so
# the fewer bits of fraction a code has.
_CODES_APART = {"fp8": 2.0**-4, "int8": 2.0**-6}


def _of_experts(linear: Kernel, name: str, target: str) -> Kernel:
    """Return the kernel of experts whose matrices ``linear`` would take."""
    return replace(
        linear,
        name=name,
        target=f"quantdock_cuda.experts:{target}",
        kinds=frozenset({"experts"}),
        experts=_ANY,
        is_batch_invariant=True,
        note="",
    )


FP8_EXPERTS = replace(
    _of_experts(FP8, "cuda_fp8_experts", "CudaScaledExperts"),
    tolerance=_CODES_APART["fp8"],
    note=_FINER,
)
INT8_EXPERTS = replace(
    _of_experts(INT8, "cuda_int8_experts", "CudaScaledExperts"),
    tolerance=_CODES_APART["int8"],
    note=_FINER,
)
_IN_ORDER = SchemeSet(
    weight=SpecSet(
        elements=frozenset(f"{sign}int{bits}" for sign in ("", "u") for bits in range(2, 9)),
        granularities=frozenset({"channel", "group"}),
        dynamic=False,
        cols_multiple=32,
    )
)
PACKED_EXPERTS = replace(
    _of_experts(PACKED, "cuda_w4a16_experts", "CudaPackedExperts"),
    accepts=_IN_ORDER,
    dtypes=_16_BITS,
    experts=replace(_ANY, intermediate_multiple=PACKED.k_multiple),
    sorts_columns=False,
)
WEIGHT_ONLY_EXPERTS = replace(
    _of_experts(WEIGHT_ONLY, "cuda_w8a16_experts", "CudaScaledExperts"), dtypes=_16_BITS
)
SMALL_FLOAT_EXPERTS = replace(
    _of_experts(SMALL_FLOAT, "cuda_fp4a16_experts", "CudaSmallFloatExperts"), dtypes=_16_BITS
)
PACKED_FLOAT_EXPERTS = replace(
    _of_experts(PACKED_FLOAT, "cuda_fp4a16_wgmma_experts", "CudaPackedFloatExperts"),
    experts=replace(_ANY, intermediate_multiple=PACKED_FLOAT.k_multiple),
)

EXPERT_KERNELS = (
    FP8_EXPERTS,
    INT8_EXPERTS,
    PACKED_EXPERTS,
    WEIGHT_ONLY_EXPERTS,
    PACKED_FLOAT_EXPERTS,
    SMALL_FLOAT_EXPERTS,
)
