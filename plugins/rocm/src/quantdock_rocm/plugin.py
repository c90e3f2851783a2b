"""What the ROCm plugin offers. Importing this file loads neither torch nor a kernel."""

from __future__ import annotations

from pkgutil import resolve_name
from typing import TYPE_CHECKING

from quantdock import PlatformEntry, hookimpl

if TYPE_CHECKING:
    from quantdock.config import QuantizationConfig
    from quantdock.kernel import Substitution
    from quantdock.platform import Platform

CONTRACT = 1

ROCM = PlatformEntry(
    name="rocm",
    rank=100,
    probe="quantdock_rocm.probe:probe",
    describe="quantdock_rocm.archs:describe",
    archs=(
        "gfx942",
        "gfx90a",
        "gfx940",
        "gfx941",
        "gfx950",
        "gfx1100",
        "gfx1150",
        "gfx1200",
        "gfx1201",
    ),
)

# What the fp8 methods mean where the device computes in the fnuz encodings.
FNUZ_CONFIGS = {
    "fp8": "quantdock_rocm.fnuz_configs:Fp8FnuzConfig",
    "fp8_per_tensor": "quantdock_rocm.fnuz_configs:Fp8PerTensorFnuzConfig",
    "fp8_per_channel": "quantdock_rocm.fnuz_configs:Fp8PerChannelFnuzConfig",
    "fp8_per_block": "quantdock_rocm.fnuz_configs:Fp8PerBlockFnuzConfig",
    "w8a8_fp8": "quantdock_rocm.fnuz_configs:W8A8Fp8FnuzConfig",
    "fbgemm_fp8": "quantdock_rocm.fnuz_configs:FbgemmFp8FnuzConfig",
    "compressed-tensors": "quantdock_rocm.fnuz_configs:CompressedTensorsFnuzConfig",
    "mxfp8": "quantdock_rocm.fnuz_configs:Mxfp8FnuzConfig",
    "modelopt": "quantdock_rocm.fnuz_configs:ModelOptFnuzConfig",
    "modelopt_fp8": "quantdock_rocm.fnuz_configs:ModelOptFp8FnuzConfig",
    "modelopt_fp4": "quantdock_rocm.fnuz_configs:ModelOptFp4FnuzConfig",
    "modelopt_mxfp8": "quantdock_rocm.fnuz_configs:ModelOptMxfp8FnuzConfig",
    "modelopt_mixed": "quantdock_rocm.fnuz_configs:ModelOptMixedFnuzConfig",
    "petit_nvfp4": "quantdock_rocm.fnuz_configs:PetitNvfp4FnuzConfig",
    "quark": "quantdock_rocm.fnuz_configs:QuarkFnuzConfig",
    "quark_mxfp4": "quantdock_rocm.fnuz_configs:QuarkMxfp4FnuzConfig",
    "quark_int4fp8_moe": "quantdock_rocm.fnuz_configs:QuarkInt4Fp8MoeFnuzConfig",
    "auto-round": "quantdock_rocm.fnuz_configs:AutoRoundFnuzConfig",
    "deepseek_v4_fp8": "quantdock_rocm.fnuz_configs:DeepseekV4Fp8FnuzConfig",
    "w4afp8": "quantdock_rocm.fnuz_configs:W4AFp8FnuzConfig",
    "minimax_m3_nvfp4": "quantdock_rocm.fnuz_configs:MinimaxM3Nvfp4FnuzConfig",
    "nvfp4_online": "quantdock_rocm.fnuz_configs:Nvfp4OnlineFnuzConfig",
}


@hookimpl
def get_platforms() -> tuple[PlatformEntry, ...]:
    """Return the ROCm platform."""
    return (ROCM,)


@hookimpl
def get_quantization_config(
    quantization: str, platform: Platform
) -> type[QuantizationConfig] | None:
    """Return the fnuz config of an fp8 method where the device needs one, else None."""
    if platform.name != ROCM.name or "fp8_fnuz" not in platform.features:
        return None
    target = FNUZ_CONFIGS.get(quantization)
    if target is None:
        return None
    config: type[QuantizationConfig] = resolve_name(target)
    return config


@hookimpl
def get_substitutions(platform: Platform) -> tuple[Substitution, ...]:
    """Return what runs instead of schemes that a GPU has no instructions for."""
    if platform.name != ROCM.name:
        return ()
    from quantdock_rocm.substitutions import SUBSTITUTIONS

    return SUBSTITUTIONS
