"""The kernels that the XPU plugin offers, as facts. Importing this file loads no torch."""

from __future__ import annotations

from quantdock.footprint import Footprint
from quantdock.kernel import Kernel
from quantdock.schemes import SchemeSet, SpecSet

INT4_PRODUCT = Kernel(
    name="xpu_int4_product",
    target="quantdock_xpu.int4_product:Int4Product",
    accepts=SchemeSet(
        weight=SpecSet(
            elements=frozenset({"int4", "uint4"}),
            granularities=frozenset({"channel", "group"}),
            dynamic=False,
            act_order=None,
            cols_multiple=32,
        ),
        input_multiplier=True,
    ),
    requires=frozenset({"xmx"}),
    dtypes=frozenset({"bfloat16", "float16"}),
    k_multiple=32,
    sorts_columns=True,
    footprint=Footprint(scale_bytes=7, zero_bytes=0),  # f32, in x's dtype, and a zero point always
    tolerance=2.0**-7,
    note="oneDNN's int4 product (PyTorch 2.8 or newer); scales are rounded to x's dtype",
)

KERNELS = (INT4_PRODUCT,)
