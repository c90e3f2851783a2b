"""Tests that need a device; without it they are skipped, with the missing device named."""

from __future__ import annotations

import pytest

from quantdock import get_platform
from quantdock.errors import PlatformError


def _platform(name):
    try:
        return get_platform(name)
    except PlatformError as error:
        pytest.skip(f"needs {name}: {'; '.join(error.why) or error.what}")


@pytest.fixture
def cuda():
    """Return the CUDA platform of this machine."""
    return _platform("cuda")


@pytest.fixture
def cpu_amx():
    """Return the AMX platform of this machine."""
    return _platform("cpu_amx")
