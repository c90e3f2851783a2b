"""Where a model is loaded: what torch does not know is told as whose word it is."""

from __future__ import annotations

import pytest
import torch

from quantdock import Platform
from quantdock.errors import PlatformError
from quantdock.integrations.transformers.place import torch_device

ACME = Platform(name="acme", arch="a1", device="acme")


def test_the_user_s_device_comes_before_the_platform_s() -> None:
    assert torch_device("cpu", ACME) == torch.device("cpu")


def test_a_platform_whose_device_torch_does_not_know_is_named() -> None:
    with pytest.raises(PlatformError, match="acme:a1 runs on device='acme', which torch") as told:
        torch_device("auto", ACME)
    assert "register the device with torch" in told.value.todo
