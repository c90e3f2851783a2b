"""The kernels that the plugin offers, as facts. Importing this file loads neither torch nor Triton.

The tolerances are those of 16-bit results: fp8 tensor cores of Hopper keep 14 bits of a sum.
"""

from __future__ import annotations

from dataclasses import replace

from quantdock.footprint import Footprint
from quantdock.kernel import Kernel
from quantdock.platform import Platform
from quantdock.schemes import SchemeSet, SpecSet

_TARGET = "quantdock_cuda.scaled_linear:CudaScaledLinear"
_FP8, _INT8 = frozenset({"fp8_e4m3"}), frozenset({"int8"})
_SCALES = frozenset({"f32", "e8m0"})
_STEP = 32  # columns of the narrowest product that fp8 tensor cores make


def _quantized(elements: frozenset[str]) -> tuple[SchemeSet, ...]:
    """Return weights in any tiles, with activations that have static or computed scales."""
    weight = SpecSet(
        elements=elements, scales=_SCALES, dynamic=False, zero=False, cols_multiple=_STEP
    )
    static = SpecSet(
        elements=elements, granularities=frozenset({"tensor"}), dynamic=False, zero=False
    )
    dynamic = SpecSet(
        elements=elements,
        granularities=frozenset({"tensor", "channel", "group"}),
        scales=_SCALES,
        dynamic=True,
        zero=False,
        cols_multiple=_STEP,
    )
    return tuple(SchemeSet(weight=weight, activation=x) for x in (static, dynamic))


FP8 = Kernel(
    name="cuda_fp8",
    target=_TARGET,
    accepts=_quantized(_FP8),
    requires=frozenset({"fp8_mma"}),
    is_batch_invariant=True,
    tolerance=2.0**-7,
)

INT8 = Kernel(
    name="cuda_int8",
    target=_TARGET,
    accepts=_quantized(_INT8),
    requires=frozenset({"int8_mma", "cp_async"}),
    is_batch_invariant=True,
    tolerance=2.0**-7,
)

WEIGHT_ONLY = Kernel(
    name="cuda_w8a16",
    target=_TARGET,
    accepts=SchemeSet(
        weight=SpecSet(
            elements=frozenset({"fp8_e4m3", "fp8_e5m2", "int8"}),
            scales=_SCALES,
            dynamic=False,
            zero=False,
            cols_multiple=_STEP,
        )
    ),
    requires=frozenset({"bf16_mma"}),
    is_batch_invariant=True,
    tolerance=2.0**-7,
    note="saves memory; faster than unquantized for few rows of fp8_e4m3 on sm_90 alone",
)

PACKED = Kernel(
    name="cuda_w4a16",
    target="quantdock_cuda.packed_linear:CudaPackedLinear",
    accepts=SchemeSet(
        weight=SpecSet(
            elements=frozenset(f"{sign}int{bits}" for sign in ("", "u") for bits in range(2, 9)),
            granularities=frozenset({"channel", "group"}),
            dynamic=False,
            act_order=None,
            cols_multiple=_STEP,
        ),
        input_multiplier=True,
    ),
    requires=frozenset({"bf16_mma"}),
    dtypes=frozenset({"bfloat16", "float16", "float32"}),
    k_multiple=_STEP,
    repacks=True,
    sorts_columns=True,
    footprint=Footprint(least_bits=4, zero_bytes=4),
    is_batch_invariant=True,
    tolerance=2.0**-7,
    note="with float32 activations, weights are made float32 at each call",
)

_SMALL_FLOATS = SpecSet(
    elements=frozenset({"fp4_e2m1", "fp6_e2m3", "fp6_e3m2"}),
    granularities=frozenset({"group"}),
    scales=frozenset({"e4m3", "e8m0"}),
    dynamic=False,
    second=None,
    cols_multiple=16,
)

SMALL_FLOAT = Kernel(
    name="cuda_fp4a16",
    target="quantdock_cuda.small_float_linear:CudaSmallFloatLinear",
    accepts=SchemeSet(weight=_SMALL_FLOATS),
    requires=frozenset({"bf16_mma"}),
    footprint=Footprint(scale_bytes=1),
    is_batch_invariant=True,
    tolerance=2.0**-7,
)

PACKED_FLOAT = replace(
    SMALL_FLOAT,
    name="cuda_fp4a16_wgmma",
    target="quantdock_cuda.small_float_linear:CudaPackedFloatLinear",
    accepts=SchemeSet(weight=replace(_SMALL_FLOATS, elements=frozenset({"fp4_e2m1"}))),
    requires=frozenset({"bf16_mma", "wgmma", "tma"}),
    dtypes=frozenset({"bfloat16"}),
    k_multiple=16,
)

# Asked for by name alone: what comes before takes all that these do.
_COPY = "keeps a 16-bit copy of the weight too, which more than 64 rows are multiplied with"
COPIES = (
    replace(
        PACKED,
        name="cuda_w4a16_copy",
        target="quantdock_cuda.dense_copy:CopiedPackedLinear",
        keeps_copy=True,
        is_batch_invariant=False,
        note=_COPY,
    ),
    replace(
        WEIGHT_ONLY,
        name="cuda_w8a16_copy",
        target="quantdock_cuda.dense_copy:CopiedScaledLinear",
        keeps_copy=True,
        is_batch_invariant=False,
        note=_COPY,
    ),
)

KERNELS = (FP8, INT8, PACKED, WEIGHT_ONLY, PACKED_FLOAT, SMALL_FLOAT, *COPIES)

# Where scales with zero points are float16, and these too, if that is exact, as it is with most.
_HALVES, _HALF_FOOTPRINT = frozenset({"wgmma"}), replace(PACKED.footprint, zero_bytes=0)


def kernels_for(platform: Platform) -> tuple[Kernel, ...]:
    """Return the linear kernels with what they keep on ``platform``, best first."""
    if not platform.features >= _HALVES:
        return KERNELS
    return tuple(
        replace(kernel, footprint=_HALF_FOOTPRINT)
        if kernel.footprint == PACKED.footprint
        else kernel
        for kernel in KERNELS
    )
