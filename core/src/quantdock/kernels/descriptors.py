"""The kernels that the core offers, as facts. Importing this file loads neither torch nor a kernel.

The ratios in the notes are measured: docs/benchmarks/cpu.md.
"""

from __future__ import annotations

from quantdock.kernel import Kernel
from quantdock.platform import Platform
from quantdock.schemes import SchemeSet, SpecSet

_EIGHT_BITS = frozenset({"fp8_e4m3", "fp8_e5m2", "fp8_e4m3fnuz", "fp8_e5m2fnuz", "int8"})
_WEIGHT = SpecSet(elements=_EIGHT_BITS, dynamic=False, zero=False)
_STATIC = SpecSet(
    elements=_EIGHT_BITS, granularities=frozenset({"tensor"}), dynamic=False, zero=False
)
_DYNAMIC = SpecSet(
    elements=_EIGHT_BITS,
    granularities=frozenset({"tensor", "channel", "group"}),
    dynamic=True,
    zero=False,
)

REFERENCE = Kernel(
    name="reference",
    target="quantdock.kernels.scaled_linear:ScaledLinear",
    accepts=(
        SchemeSet(weight=_WEIGHT, activation=_STATIC),
        SchemeSet(weight=_WEIGHT, activation=_DYNAMIC),
        SchemeSet(weight=_WEIGHT),
    ),
    is_reference=True,
    tolerance=2.0**-8,
    note="2 to 4 times the time of an unquantized float32 layer for one token, 1.1 to 1.5 for 64",
)

INT8_PACK = Kernel(
    name="int8_pack",
    target="quantdock.kernels.int8_pack:Int8Pack",
    accepts=SchemeSet(
        weight=SpecSet(
            elements=frozenset({"int8"}),
            granularities=frozenset({"tensor", "channel"}),
            dynamic=False,
            zero=False,
        )
    ),
    requires=frozenset({"avx2"}),
    dtypes=frozenset({"bfloat16"}),
    k_multiple=16,
    tolerance=2.0**-7,
    note="half to nine tenths of the time of an unquantized layer for one to four tokens",
)


def kernels_for(platform: Platform) -> tuple[Kernel, ...]:
    """Return the core's kernels for ``platform``, best first."""
    return (REFERENCE,) if platform.is_accelerator else (INT8_PACK, REFERENCE)
