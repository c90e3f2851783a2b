"""Looking for an AMD GPU. Torch is imported only where its build and the driver allow one."""

from __future__ import annotations

import sys
from pathlib import Path

from quantdock.errors import PlatformError
from quantdock.platform import Absent, Platform
from quantdock.registry.torch_build import read_torch_build
from quantdock_rocm.archs import platform_of

_DRIVER = Path("/dev/kfd")


def probe(index: int = 0) -> Platform | Absent:
    """Return the platform of GPU ``index``, or why there is none."""
    build = read_torch_build()
    if not build.get("hip"):
        version = build.get("__version__", "(not installed)")
        return Absent(reason=f"PyTorch {version} is built without ROCm")
    if sys.platform == "linux" and not _DRIVER.exists():
        return Absent(reason=f"no AMD GPU driver: {_DRIVER} does not exist")
    try:
        return _look(index)
    except (ImportError, RuntimeError, AssertionError) as error:
        return Absent(reason=f"PyTorch cannot use the GPU: {error}")


def _look(index: int) -> Platform | Absent:
    import torch

    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if index >= count:
        return Absent(reason=f"PyTorch sees {count} ROCm devices, so there is no device {index}")
    properties = torch.cuda.get_device_properties(index)
    try:
        return platform_of(properties.gcnArchName, properties.total_memory)
    except PlatformError as error:
        return Absent(reason=f"{properties.name}: {' '.join(str(error).split())}")
