"""Looking for an NVIDIA GPU: every way of not finding one has its reason."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from quantdock import Absent
from quantdock_cuda import probe as module

BUILD = {"__version__": "2.13.0+cu128", "cuda": "12.8"}


@pytest.fixture
def machine(monkeypatch):
    """Return a function that poses as a machine with these devices."""

    def pose(*capabilities, build=BUILD, driver=True, error=None):
        def available():
            if error:
                raise error
            return bool(capabilities)

        def properties(index):
            major, minor = capabilities[index]
            return SimpleNamespace(major=major, minor=minor, total_memory=80 << 30, name="GPU")

        monkeypatch.setattr(module, "read_torch_build", lambda: build)
        monkeypatch.setattr(module, "has_driver", lambda: driver)
        monkeypatch.setattr(torch.cuda, "is_available", available)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: len(capabilities))
        monkeypatch.setattr(torch.cuda, "get_device_properties", properties)

    return pose


def test_it_finds_each_device(machine):
    machine((9, 0), (8, 9))
    first, second = module.probe(0), module.probe(1)
    assert (str(first), first.memory_bytes, first.described) == ("cuda:sm_90", 80 << 30, False)
    assert str(second) == "cuda:sm_89"


@pytest.mark.parametrize(
    ("pose", "index", "reason"),
    [
        ({"build": {"__version__": "2.13.0+cpu", "cuda": None}}, 0, "2.13.0+cpu is built without"),
        ({"build": {}}, 0, "PyTorch (not installed) is built without CUDA"),
        ({"driver": False}, 0, "no NVIDIA driver: "),
        ({}, 0, "PyTorch sees 0 CUDA devices, so there is no device 0"),
        ({"error": RuntimeError("driver too old")}, 0, "PyTorch cannot use the GPU: driver too"),
    ],
)
def test_what_is_missing_is_said(machine, pose, index, reason):
    machine(**pose)
    found = module.probe(index)
    assert isinstance(found, Absent)
    assert reason in found.reason


def test_a_device_that_is_too_old_is_absent(machine):
    machine((7, 0))
    found = module.probe(0)
    assert isinstance(found, Absent)
    assert found.reason.startswith("GPU: Nothing is known of CUDA architecture sm_70. known: ")


def test_the_driver_check_loads_no_device(monkeypatch):
    monkeypatch.setattr(module, "_DRIVER", "libno-such-driver.so.1")
    assert module.has_driver() is False
