"""Looking for an AMD GPU: every way of not finding one has its reason."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from quantdock import Absent
from quantdock_rocm import probe as module

BUILD = {"__version__": "2.13.0+rocm7.0", "hip": "7.0"}


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """Return a function that poses as a machine with these devices."""

    def pose(*archs, build=BUILD, driver=True):
        def properties(index):
            return SimpleNamespace(gcnArchName=archs[index], total_memory=192 << 30, name="GPU")

        monkeypatch.setattr(module, "read_torch_build", lambda: build)
        monkeypatch.setattr(module, "_DRIVER", tmp_path if driver else tmp_path / "kfd")
        monkeypatch.setattr(torch.cuda, "is_available", lambda: bool(archs))
        monkeypatch.setattr(torch.cuda, "device_count", lambda: len(archs))
        monkeypatch.setattr(torch.cuda, "get_device_properties", properties)

    return pose


def test_it_finds_the_device(machine):
    machine("gfx942:sramecc+:xnack-")
    found = module.probe(0)
    assert (str(found), found.memory_bytes) == ("rocm:gfx942", 192 << 30)
    assert "fp8_fnuz" in found.features


@pytest.mark.parametrize(
    ("pose", "reason"),
    [
        ({"build": {"__version__": "2.13.0+cu128", "hip": None}}, "is built without ROCm"),
        ({"driver": False}, "no AMD GPU driver: "),
        ({}, "PyTorch sees 0 ROCm devices"),
    ],
)
def test_what_is_missing_is_said(machine, pose, reason):
    machine(**pose)
    found = module.probe(0)
    assert isinstance(found, Absent)
    assert reason in found.reason


def test_a_device_that_is_too_old_is_absent(machine):
    machine("gfx803")
    found = module.probe(0)
    assert isinstance(found, Absent)
    assert "Nothing is known of ROCm architecture gfx803" in found.reason
