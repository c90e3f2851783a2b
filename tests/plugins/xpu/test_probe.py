"""Looking for an Intel GPU: by name, by what the driver reports, and why there is none."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from quantdock import Absent
from quantdock_xpu import probe as module

BUILD = {"__version__": "2.13.0+xpu", "xpu": "20250302"}


@pytest.mark.parametrize(
    ("name", "arch"),
    [
        ("Intel(R) Arc(TM) B580 Graphics", "bmg"),
        ("Intel(R) Arc(TM) Pro B60 Graphics", "bmg"),
        ("Intel(R) Data Center GPU Max 1550", "pvc"),
        ("Intel(R) Arc(TM) A770 Graphics", "dg2"),
        ("Intel(R) Data Center GPU Flex 170", "dg2"),
        ("Intel(R) Arc(TM) 140V GPU (16GB)", "lnl"),
        ("Intel(R) Arc(TM) B390 GPU", "ptl"),
        ("Intel(R) Iris(R) Xe Graphics", "generic"),
    ],
)
def test_names(name, arch):
    assert module.name_arch(name) == arch


def pose(monkeypatch, *names, build=BUILD, **reported):
    def properties(index):
        return SimpleNamespace(name=names[index], total_memory=12 << 30, **reported)

    monkeypatch.setattr(module, "read_torch_build", lambda: build)
    monkeypatch.setattr(torch.xpu, "is_available", lambda: bool(names))
    monkeypatch.setattr(torch.xpu, "device_count", lambda: len(names))
    monkeypatch.setattr(torch.xpu, "get_device_properties", properties)


def test_it_finds_the_device(monkeypatch):
    pose(monkeypatch, "Intel(R) Arc(TM) B580 Graphics")
    found = module.probe(0)
    assert (str(found), found.memory_bytes) == ("xpu:bmg", 12 << 30)


def test_an_unknown_device_has_what_its_driver_reports(monkeypatch):
    flags = {"has_subgroup_matrix_multiply_accumulate": True, "has_fp64": False}
    pose(monkeypatch, "Intel(R) New Thing", **flags)
    found = module.probe(0)
    assert str(found) == "xpu:generic"
    assert found.features == {"xmx", "fp16_mma", "bf16_mma", "int8_mma"}


@pytest.mark.parametrize(
    ("build", "reason"),
    [
        ({"__version__": "2.13.0+cpu", "xpu": None}, "2.13.0+cpu is built without XPU support"),
        (BUILD, "PyTorch sees 0 XPU devices, so there is no device 0"),
    ],
)
def test_what_is_missing_is_said(monkeypatch, build, reason):
    pose(monkeypatch, build=build)
    found = module.probe(0)
    assert isinstance(found, Absent)
    assert reason in found.reason
