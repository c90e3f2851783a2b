"""The kernels that the core offers, as facts. Importing this file loads neither torch nor a kernel.

The ratios in the notes are measured: docs/benchmarks/cpu.md. No machine with AMX was among them,
whose tiles help unquantized bfloat16 layers and not the reference.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from quantdock.footprint import Footprint
from quantdock.formats import ELEMENTS
from quantdock.kernel import Kernel
from quantdock.platform import Platform
from quantdock.problem import INPUT
from quantdock.schemes import SchemeSet, SpecSet

_FLOATS = frozenset(e.name for e in ELEMENTS.values() if e.is_float)
_INTEGERS = frozenset(e.name for e in ELEMENTS.values() if not e.is_float)
# One bit has no largest code to scale x by.
_ROUNDED = _INTEGERS - {"int1", "uint1"}
_MEASURED = "on CPUs without AMX"


def _reference_sets() -> Iterator[SchemeSet]:
    """Yield all floats, and all integers, in act-order too; with each kind of activations."""
    weights = (
        SpecSet(elements=_FLOATS, dynamic=False, zero=False, second=None),
        SpecSet(elements=_INTEGERS, dynamic=False, act_order=None, second=None),
    )
    static, dynamic = frozenset({"tensor"}), frozenset({"tensor", "channel", "group"})
    activations = [
        SpecSet(
            elements=elements,
            granularities=tiles,
            dynamic=tiles is dynamic,
            zero=zero,
            second=None,
        )
        for elements, zero in ((_FLOATS, False), (_ROUNDED, None))
        for tiles in (static, dynamic)
    ]
    for weight in weights:
        for activation in (*activations, None):
            yield SchemeSet(weight=weight, activation=activation, input_multiplier=True)


REFERENCE = Kernel(
    name="reference",
    target="quantdock.kernels.scaled_linear:ScaledLinear",
    accepts=tuple(_reference_sets()),
    is_reference=True,
    tolerance=2.0**-8,
    note="1 to 4 times the time of an unquantized float32 layer for one token, 1.0 to 1.5 for 64, "
    f"{_MEASURED}",
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
    note="half to nine tenths of the time of an unquantized layer for one to four tokens, "
    f"{_MEASURED}",
)

INT4_PACK = Kernel(
    name="int4_pack",
    target="quantdock.kernels.int4_pack:Int4Pack",
    accepts=SchemeSet(
        weight=SpecSet(
            elements=frozenset({"int3", "uint3", "int4", "uint4"}),
            granularities=frozenset({"channel", "group"}),
            dynamic=False,
            act_order=None,
            cols_multiple=32,
        ),
        input_multiplier=True,
    ),
    requires=frozenset({"avx2"}),
    dtypes=frozenset({"bfloat16"}),
    n_multiple=16,
    k_multiple=32,
    sorts_columns=True,
    footprint=Footprint(least_bits=4, scale_bytes=8),  # in bfloat16 pairs, and as they were given
    tolerance=2.0**-7,
    note="a quarter of the time of an unquantized layer for one token, the same for 64, "
    f"{_MEASURED}; scales are rounded to bfloat16",
)

INT8_MM = Kernel(
    name="int8_mm",
    target="quantdock.kernels.int8_mm:Int8Mm",
    accepts=tuple(
        SchemeSet(
            weight=SpecSet(
                elements=frozenset({"int8"}),
                granularities=frozenset({"tensor", "channel"}),
                dynamic=False,
                zero=False,
            ),
            activation=SpecSet(
                elements=frozenset({"int8"}), granularities=tiles, dynamic=is_dynamic, zero=False
            ),
            input_multiplier=True,
        )
        for tiles, is_dynamic in (
            (frozenset({"tensor"}), False),
            (frozenset({"tensor", "channel"}), True),
        )
    ),
    requires=frozenset({"avx512_vnni"}),
    tolerance=2.0**-8,
    note=f"a quarter to a half of the time of an unquantized float32 layer, {_MEASURED}",
)

PLAIN_INPUT = Kernel(
    name="plain_input",
    target="quantdock.kernels.plain_input:PlainInput",
    accepts=SchemeSet(weight=SpecSet(act_order=None, second=None), activation=SpecSet(zero=False)),
    kinds=frozenset({INPUT}),
    note="plain torch: the function, then the quantization",
)

# Nobody timed the reference on a GPU, where a step of plain torch is a launch each.
_FOR_ACCELERATORS = (PLAIN_INPUT, replace(REFERENCE, note="slow; it was timed on CPUs only"))
_FOR_CPUS = (INT4_PACK, INT8_PACK, INT8_MM, PLAIN_INPUT, REFERENCE)


def kernels_for(platform: Platform) -> tuple[Kernel, ...]:
    """Return the core's kernels for ``platform``, best first."""
    return _FOR_ACCELERATORS if platform.is_accelerator else _FOR_CPUS
