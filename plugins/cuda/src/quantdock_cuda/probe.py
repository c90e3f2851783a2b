"""Looking for an NVIDIA GPU. Torch is imported only where its build and the driver allow one."""

from __future__ import annotations

import ctypes
import sys

from quantdock.errors import PlatformError
from quantdock.platform import Absent, Platform
from quantdock.registry.torch_build import read_torch_build
from quantdock_cuda.archs import platform_of

_DRIVER = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"


def probe(index: int = 0) -> Platform | Absent:
    """Return the platform of GPU ``index``, or why there is none."""
    build = read_torch_build()
    if not build.get("cuda"):
        version = build.get("__version__", "(not installed)")
        return Absent(reason=f"PyTorch {version} is built without CUDA")
    if not has_driver():
        return Absent(reason=f"no NVIDIA driver: {_DRIVER} cannot be loaded")
    try:
        return _look(index)
    except (ImportError, RuntimeError, AssertionError) as error:
        return Absent(reason=f"PyTorch cannot use the GPU: {error}")


def has_driver() -> bool:
    """Return whether the NVIDIA driver library is there; this initialises no device."""
    try:
        ctypes.CDLL(_DRIVER)
    except OSError:
        return False
    return True


def _look(index: int) -> Platform | Absent:
    import torch

    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if index >= count:
        return Absent(reason=f"PyTorch sees {count} CUDA devices, so there is no device {index}")
    properties = torch.cuda.get_device_properties(index)
    try:
        return platform_of((properties.major, properties.minor), properties.total_memory)
    except PlatformError as error:
        return Absent(reason=f"{properties.name}: {' '.join(str(error).split())}")
