"""Measured ways: the user's before those shipped, entry by entry, and none that is stale."""

from __future__ import annotations

import ast
import json
import logging
from dataclasses import replace

import pytest

from quantdock_cuda import libraries, tables
from quantdock_cuda.archs import describe
from quantdock_cuda.device import Device
from quantdock_cuda.libraries import DEEP_GEMM, LIBRARY
from quantdock_cuda.tiling import BLOCK, names_of, ways
from quantdock_triton.tile import Form, parse_tile

TILE = parse_tile("16x64x128 parts=3 stages=5 swap")
OTHER = parse_tile("32x64x128 stages=5 swap")


def device(arch="sm_90", name="NVIDIA H200"):
    features = describe(arch).features
    return Device(arch=arch, name=name, features=features, num_sms=132, shared_bytes=232448)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """Give the test a cache of its own."""
    monkeypatch.setenv("QUANTDOCK_CACHE", str(tmp_path))

    def forget():
        tables.measured.cache_clear()
        ways.cache_clear()

    forget()
    yield tmp_path
    forget()


def test_an_entry_of_the_user_takes_the_place_of_one_shipped(cache):
    h200 = device()
    before = ways(Form(), h200, 4096, 4096, 16)
    assert str(before[0]).startswith("16x64x256")
    path = tables.store(h200, "row", (4096, 4096), 16, [(5.0, TILE), (6.0, LIBRARY)])
    ways.cache_clear()
    assert ways(Form(), h200, 4096, 4096, 16)[:2] == (TILE, LIBRARY)
    assert ways(Form(), h200, 4096, 4096, 32) == ways(Form(), device(name="x"), 4096, 4096, 32)
    assert path.parent == cache / "cuda"
    assert path.name == f"sm_90-nvidia-h200-{tables.version()}.json"


def test_other_devices_and_other_kernels_do_not_read_it(monkeypatch):
    h200 = device()
    path = tables.store(h200, "row", (4096, 4096), 16, [(5.0, TILE)])
    assert tables.measured(device(name="NVIDIA H100")) == {}
    monkeypatch.setattr(tables, "version", lambda: "0" * 12)
    tables.measured.cache_clear()
    assert tables.measured(h200) == {}
    assert tables.outdated(h200) == [path]


def test_entries_are_added_to_those_that_are_there():
    h200 = device()
    tables.store(h200, "row", (64, 64), 1, [(1.0, TILE)])
    tables.store(h200, "row", (64, 64), 16, [(2.0, OTHER)])
    tables.store(h200, "block", (64, 64), 1, [(3.0, LIBRARY)])
    assert tables.measured(h200) == {
        "row": {(64, 64): {1: (TILE,), 16: (OTHER,)}},
        "block": {(64, 64): {1: (LIBRARY,)}},
    }


@pytest.mark.parametrize("content", ["{", "[]", '{"ways": {}}', "null", '{"format": 1}'])
def test_a_broken_file_is_named_and_ignored(content, caplog):
    h200 = device()
    path = tables.path_of(h200)
    path.parent.mkdir(parents=True)
    path.write_text(content)
    with caplog.at_level(logging.WARNING, "quantdock.cuda"):
        assert tables.measured(h200) == {}
    assert str(path) in caplog.text and "tune again" in caplog.text
    tables.store(h200, "row", (64, 64), 1, [(1.0, TILE)])
    assert tables.measured(h200) == {"row": {(64, 64): {1: (TILE,)}}}


@pytest.mark.parametrize("change", [{"device": "NVIDIA L4"}, {"arch": "sm_80"}, {"format": 9}])
def test_a_table_of_something_else_is_ignored(change, caplog):
    h200 = device()
    path = tables.store(h200, "row", (64, 64), 1, [(1.0, TILE)])
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    tables.measured.cache_clear()
    with caplog.at_level(logging.WARNING, "quantdock.cuda"):
        assert tables.measured(h200) == {}
    assert str(path) in caplog.text


def test_a_word_that_is_no_way_is_a_broken_file(caplog):
    h200 = device()
    path = tables.store(h200, "row", (64, 64), 1, [(1.0, TILE)])
    path.write_text(path.read_text().replace(str(TILE), "a_later_library"))
    tables.measured.cache_clear()
    with caplog.at_level(logging.WARNING, "quantdock.cuda"):
        assert tables.measured(h200) == {}
    assert "a_later_library" in caplog.text


def test_few_rows_do_not_stand_for_many():
    l40 = device("sm_89", "NVIDIA L40")
    tables.store(l40, "row", (4096, 4096), 16, [(5.0, TILE)])
    assert tables.nearest(["row"], l40, (4096, 4096), 512) == ()
    assert tables.nearest(["row"], l40, (4096, 4096), 1) == ()
    tables.store(l40, "row", (4096, 4096), 4096, [(50.0, OTHER)])
    assert tables.nearest(["row"], l40, (64, 64), 8192)[0].ways == (OTHER,)
    assert tables.nearest(["row"], l40, (64, 64), 2048)[0].ways == (OTHER,)


def test_one_scale_has_a_name_of_its_own_and_reads_rows_too():
    h200 = device()
    assert names_of(Form(), one_scale=True) == ("tensor", "row")
    assert names_of(Form(element="int8")) == ("int8[1x*] x [1x*]",)
    assert names_of(Form(weight_only=True, weight_cols=128, weight_rows=128)) == (
        "fp8_e4m3[128x128]",
    )
    tables.store(h200, "tensor", (4096, 4096), 512, [(5.0, OTHER), (6.0, LIBRARY)])
    assert ways(Form(), h200, 4096, 4096, 512, True)[0] == OTHER
    assert ways(Form(), h200, 4096, 4096, 1024, True)[0] == LIBRARY


def test_a_library_is_taken_where_a_table_says_so_and_it_is_installed(monkeypatch):
    """Of the nearest shape, too; our own tiles and torch serve where it is not there."""
    h200 = device()
    tables.store(h200, "block", (4096, 4096), 4096, [(5.0, DEEP_GEMM), (6.0, OTHER)])
    ways.cache_clear()
    assert ways(BLOCK, h200, 4096, 4096, 4096)[0] == OTHER
    ways.cache_clear()
    monkeypatch.setattr("quantdock_cuda.tiling.is_installed", lambda name: True)
    assert ways(BLOCK, h200, 4096, 4096, 4096)[:2] == (DEEP_GEMM, OTHER)
    assert ways(BLOCK, h200, 5120, 4096, 4096)[:2] == (DEEP_GEMM, OTHER)
    assert ways(BLOCK, h200, 4096, 4096, 256)[0] != DEEP_GEMM
    assert DEEP_GEMM not in ways(Form(), h200, 4096, 4096, 4096)


def test_blocks_of_few_rows_take_tiles_that_can_be_recorded(monkeypatch):
    """A library's product cannot: the host pays for it at each call."""
    monkeypatch.setattr("quantdock_cuda.tiling.is_installed", lambda name: True)
    by_shape = tables.shipped("sm_90")["block"]
    assert DEEP_GEMM in {w for rows in by_shape.values() for w in rows[4096]}
    for n, k in by_shape:
        for m in (1, 16, 64, 256):
            assert DEEP_GEMM not in ways(BLOCK, device(), n, k, m)


def test_torch_is_installed_and_the_others_are_asked_for_by_name():
    assert libraries.is_installed(LIBRARY)
    assert set(libraries.LIBRARIES) == {"library", "deep_gemm", "flashinfer"}


def imported(source):
    """Return the modules of the plugin's two packages that a source imports, read as Python."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        else:
            continue
        yield from (n for n in names if n.startswith(("quantdock_cuda.", "quantdock_triton.")))


def test_whatever_computes_a_way_belongs_to_what_was_measured():
    found = tables.sources()
    assert {"quantdock_cuda.packed_operand", "quantdock_cuda.packed_result"} < found.keys()
    assert {"quantdock_triton.matmul_kernel", "quantdock_triton.small_float_kernel"} < found.keys()
    assert found.keys().isdisjoint(tables._LAUNCHERS)
    needed = {name for source in found.values() for name in imported(source)}
    known = {name for name in needed if tables._read(name) is not None}
    assert known <= found.keys() | tables._LAUNCHERS
    assert all(tables._read(name) is not None for name in (*tables._ROOTS, *tables._LAUNCHERS))


def test_a_change_of_any_of_them_makes_measurements_stale(monkeypatch):
    before, read = tables.version(), tables._read
    for name in tables.sources():
        changed = lambda module, name=name: read(module) + "# \n" * (module == name)  # noqa: E731
        monkeypatch.setattr(tables, "_read", lambda m, c=changed: c(m) if read(m) else None)
        assert tables.version.__wrapped__() != before, name


def test_entries_say_how_large_a_gpu_they_were_measured_on():
    small = replace(device(name="NVIDIA H100 PCIe"), num_sms=114)
    tables.store(small, "row", (4096, 4096), 16, [(5.0, TILE)])
    found = {near.shape: near for near in tables.nearest(["row"], small, (4096, 4096), 16)}
    assert (found[4096, 4096].num_sms, found[4096, 4096].is_users) == (114, True)
    assert {near.num_sms for shape, near in found.items() if shape != (4096, 4096)} == {132}
    ways.cache_clear()
    assert ways(Form(), small, 4096, 4096, 16)[0] == TILE  # as it was measured
