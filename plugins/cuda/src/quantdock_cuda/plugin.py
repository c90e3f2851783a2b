"""What the CUDA plugin offers. Importing this file loads neither torch nor a kernel."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quantdock import PlatformEntry, hookimpl

if TYPE_CHECKING:
    from quantdock.kernel import Kernel, Substitution
    from quantdock.platform import Platform

CONTRACT = 1

CUDA = PlatformEntry(
    name="cuda",
    rank=100,
    probe="quantdock_cuda.probe:probe",
    describe="quantdock_cuda.archs:describe",
    archs=("sm_90", "sm_75", "sm_80", "sm_86", "sm_89", "sm_100", "sm_110", "sm_120"),
)


@hookimpl
def get_platforms() -> tuple[PlatformEntry, ...]:
    """Return the CUDA platform."""
    return (CUDA,)


@hookimpl
def get_kernels(platform: Platform) -> tuple[Kernel, ...]:
    """Return the kernels for NVIDIA GPUs."""
    if platform.name != CUDA.name:
        return ()
    from quantdock_cuda.expert_kernels import EXPERT_KERNELS
    from quantdock_cuda.input_kernels import INPUT_KERNELS
    from quantdock_cuda.kernels import kernels_for

    return (*kernels_for(platform), *EXPERT_KERNELS, *INPUT_KERNELS)


@hookimpl
def get_substitutions(platform: Platform) -> tuple[Substitution, ...]:
    """Return what runs instead of schemes that a GPU has no instructions for."""
    if platform.name != CUDA.name:
        return ()
    from quantdock_cuda.substitutions import SUBSTITUTIONS

    return SUBSTITUTIONS


@hookimpl
def get_tuner(platform: Platform) -> str | None:
    """Return what measures the ways of our kernels."""
    return "quantdock_cuda.tuning.tuner:CudaTuner" if platform.name == CUDA.name else None
