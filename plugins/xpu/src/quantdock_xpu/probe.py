"""Looking for an Intel GPU. Torch is imported only where its build allows one."""

from __future__ import annotations

import re
from typing import Any

from quantdock.platform import Absent, Platform
from quantdock.registry.torch_build import read_torch_build
from quantdock_xpu.archs import FEATURES, platform_of

# Pattern of a device's name -> architecture.
NAMES = (
    (r"Arc\b.*\bB3[79]0\b", "ptl"),
    (r"Arc\b.*\bB\d{2,3}", "bmg"),
    (r"Data Center GPU Max", "pvc"),
    (r"Arc\b.*\bA\d{2,3}|Data Center GPU Flex", "dg2"),
    (r"Arc\b.*\b1[34]0V", "lnl"),
)
OTHER = "generic"  # a device of no known name: the facts that the driver reports

# Property that the driver reports -> features it stands for.
REPORTED = {
    "has_subgroup_matrix_multiply_accumulate": ("xmx", "fp16_mma", "bf16_mma", "int8_mma"),
    "has_subgroup_matrix_multiply_accumulate_tensor_float32": ("tf32_mma",),
    "has_subgroup_2d_block_io": ("block_2d_io",),
    "has_fp64": ("fp64",),
}


def probe(index: int = 0) -> Platform | Absent:
    """Return the platform of GPU ``index``, or why there is none."""
    build = read_torch_build()
    if not build.get("xpu"):
        version = build.get("__version__", "(not installed)")
        return Absent(reason=f"PyTorch {version} is built without XPU support")
    try:
        return _look(index)
    except (ImportError, RuntimeError, AssertionError) as error:
        return Absent(reason=f"PyTorch cannot use the GPU: {error}")


def name_arch(device_name: str) -> str:
    """Return the architecture of a device of this name, or "generic"."""
    return next((arch for pattern, arch in NAMES if re.search(pattern, device_name)), OTHER)


def read_features(arch: str, properties: Any) -> frozenset[str]:
    """Return the facts of ``arch``, or for an unknown one those that the driver reports."""
    if arch in FEATURES:
        return FEATURES[arch]
    return frozenset(
        feature
        for flag, features in REPORTED.items()
        if getattr(properties, flag, False)
        for feature in features
    )


def _look(index: int) -> Platform | Absent:
    import torch

    count = torch.xpu.device_count() if torch.xpu.is_available() else 0
    if index >= count:
        return Absent(reason=f"PyTorch sees {count} XPU devices, so there is no device {index}")
    properties = torch.xpu.get_device_properties(index)
    arch = name_arch(properties.name)
    return platform_of(arch, read_features(arch, properties), properties.total_memory)
