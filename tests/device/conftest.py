"""Tests that need a device; without it they are skipped, with the missing device named."""

from __future__ import annotations

import sys
import warnings
from contextlib import contextmanager

import pytest
import torch

from quantdock import get_platform
from quantdock.errors import PlatformError


def _platform(name):
    try:
        return get_platform(name)
    except PlatformError as error:
        pytest.skip(f"needs {name}: {'; '.join(error.why) or error.what}")


@pytest.fixture(autouse=True)
def _compile_afresh():
    """Forget what was compiled for other tests: code that many share would reach torch's limit."""
    if "torch._dynamo" in sys.modules:
        with warnings.catch_warnings(action="ignore"):  # of what torch imports for it
            torch._dynamo.reset()


@pytest.fixture
def nothing_waits():
    """Return a context in which waiting for the GPU is an error."""

    @contextmanager
    def context():
        with warnings.catch_warnings(action="ignore"):  # torch calls this mode a prototype
            torch.cuda.set_sync_debug_mode("error")
        try:
            yield
        finally:
            torch.cuda.set_sync_debug_mode("default")

    return context


@pytest.fixture
def cuda():
    """Return the CUDA platform of this machine."""
    return _platform("cuda")


@pytest.fixture
def cpu_amx():
    """Return the AMX platform of this machine."""
    return _platform("cpu_amx")
