"""What the NPU plugin offers. Importing this file loads neither torch nor a kernel."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from quantdock import Kernel, MethodName, PlatformEntry, SchemeSet, SpecSet, hookimpl

if TYPE_CHECKING:
    from quantdock import Platform, QuantizationConfig

CONTRACT = 1

# Its probe always succeeds, so it ranks below the plain CPU: nobody gets it unasked.
NPU = PlatformEntry(
    name="npu",
    rank=-10,
    probe="quantdock_npu.device:probe",
    describe="quantdock_npu.device:describe",
    archs=("n1",),
)
FP4 = SpecSet(
    elements=frozenset({"fp4_e2m1"}),
    granularities=frozenset({"group"}),
    scales=frozenset({"e8m0"}),
    dynamic=False,
    cols_multiple=32,
)
TOKENS = replace(FP4, elements=frozenset({"fp4_e2m1", "fp8_e4m3"}), dynamic=True)
MX_PRODUCT = Kernel(
    name="npu_mx_product",
    target="quantdock_npu.mx_product:MxProduct",
    accepts=SchemeSet(weight=FP4, activation=TOKENS),
    requires=frozenset({"mx_mma"}),
    k_multiple=32,
    tolerance=1e-5,
)
W4A8 = MethodName(
    name="npu_w4a8",
    summary="fp4 weights at load, fp8 activations: linear layers and experts",
    target="quantdock_npu.configs:NpuW4A8Config",
    online=True,
    serialized=False,
)


@hookimpl
def get_platforms() -> tuple[PlatformEntry, ...]:
    """Return the NPU."""
    return (NPU,)


@hookimpl
def get_quantization_config(
    quantization: str, platform: Platform
) -> type[QuantizationConfig] | None:
    """Return what ``mxfp4`` means on the NPU; what the core means by other names stands."""
    if platform.name != NPU.name or quantization != "mxfp4":
        return None
    from quantdock_npu.configs import NpuMxfp4Config

    return NpuMxfp4Config


@hookimpl
def get_quantization_methods() -> tuple[MethodName, ...]:
    """Return the NPU's own word, for fp4 weights with fp8 activations."""
    return (W4A8,)


@hookimpl
def get_kernels(platform: Platform) -> tuple[Kernel, ...]:
    """Return the NPU's one kernel."""
    return (MX_PRODUCT,) if platform.name == NPU.name else ()
