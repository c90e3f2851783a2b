"""Fixtures that every test may use."""

from __future__ import annotations

import gc
import os
import shutil
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from quantdock.registry.current import load_registry, use_registry


def pytest_collection_finish() -> None:
    """Leave what is imported by now out of every later search for garbage."""
    gc.freeze()


@pytest.fixture(scope="session")
def shared() -> Path:
    """Return the folder of third-party values and checkpoints, or skip where it is absent."""
    default = Path(__file__).resolve().parents[2] / "shared"
    folder = Path(os.environ.get("QUANTDOCK_SHARED", default))
    if not (folder / "golden").is_dir():
        pytest.skip(f"needs the shared checkpoints; none at {folder} (set QUANTDOCK_SHARED)")
    return folder


@pytest.fixture(scope="session")
def golden() -> Path:
    """Return the folder of golden values that ship with the tests."""
    return Path(__file__).resolve().parent / "golden"


@pytest.fixture(autouse=True)
def _every_processor_is_plain(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    """Leave a processor with AMX to the core's ``cpu``, as all others are: it closes names out.

    Tests of devices see what is there, in a registry of their own, as one remembers what it saw.
    """
    if request.node.get_closest_marker("device") is not None:
        with use_registry(load_registry()):
            yield
        return
    if find_spec("quantdock_cpu_amx"):
        monkeypatch.setattr("quantdock_cpu_amx.probe.request_tiles", lambda: False)
    yield


@pytest.fixture
def inductor() -> Iterator[None]:
    """Let torch compile for the vector units that the CPU names; trying each would take 7 s."""
    if shutil.which("g++") is None and shutil.which("clang++") is None:
        pytest.skip("needs a C++ compiler: neither g++ nor clang++ is installed")
    from torch._inductor import config

    with config.patch("cpp.vec_isa_ok", True):
        yield
