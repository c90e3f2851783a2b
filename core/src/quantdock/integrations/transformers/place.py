"""Where a model is loaded: the platform of this machine and its torch device."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from quantdock.errors import ConfigError, PlatformError
from quantdock.platform import Platform
from quantdock.registry import get_platform, platform_for_device
from quantdock.registry.settings import PLATFORM


def choose_place(device: str | torch.device, platform: str | Platform | None) -> Platform:
    """Return the probed platform that runs tensors of ``device``, or the best for "auto".

    Raises:
        ConfigError: torch knows no such device.
        PlatformError: the platform is not on this machine, or is one of another device.
    """
    word = str(device)
    found = platform_for_device(word if word == "auto" else _torch_name(device), platform)
    if not found.described:
        return found
    try:
        here = get_platform(found.name)
    except PlatformError as error:
        raise _elsewhere(found, error.why) from error
    if here.arch != found.arch:
        raise _elsewhere(found, [f"{found.name} here is {here}"])
    return here


def _elsewhere(platform: Platform, why: Sequence[str]) -> PlatformError:
    return PlatformError(
        f"{platform} is not on this machine, so nothing can be loaded for it.",
        why=why,
        todo="Use `quantdock explain --platform` to plan for it, or leave the option out "
        f"(--platform, {PLATFORM}).",
    )


def torch_device(device: str | torch.device, platform: Platform) -> torch.device:
    """Return the torch device that the model's tensors go to.

    Raises:
        PlatformError: torch knows no device of the name that the platform's package gives.
    """
    if str(device) != "auto":
        return torch.device(device)
    try:
        return torch.device(platform.device)
    except RuntimeError as error:
        raise PlatformError(
            f"{platform} runs on device={platform.device!r}, which torch does not know.",
            why=[str(error).splitlines()[0]],
            todo="Its package has to register the device with torch when it is probed, or to name "
            "one that is registered; --platform cpu runs without it.",
        ) from error


def _torch_name(device: str | torch.device) -> str:
    """Return what torch calls ``device``, which may be a number."""
    try:
        return str(torch.device(device))
    except (RuntimeError, TypeError) as error:
        raise ConfigError(
            f"device={device!r:.60} is no torch device.",
            why=[str(error).splitlines()[0]],
            todo="Write it like cpu, cuda:0 or xpu, or use auto.",
        ) from error
