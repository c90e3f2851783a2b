"""What the tuner measures, keeps and tells, with times that are made up instead of measured."""

from __future__ import annotations

import pytest
import torch

from quantdock.kernel import Problem
from quantdock.schemes import parse_scheme
from quantdock_cuda import libraries, tables
from quantdock_cuda.archs import describe
from quantdock_cuda.device import Device
from quantdock_cuda.libraries import DEEP_GEMM, LIBRARY
from quantdock_cuda.tiling import ways
from quantdock_cuda.tuning import tuner as module
from quantdock_cuda.tuning.search import search
from quantdock_cuda.tuning.tuner import CudaTuner
from quantdock_cuda.unpacked import UNPACK
from quantdock_triton.tile import Form, Tile, parse_tile

DEVICE = Device(
    arch="sm_90",
    name="NVIDIA H200",
    features=describe("sm_90").features,
    num_sms=132,
    shared_bytes=232448,
)
A, B, C = (parse_tile(f"16x64x128 stages={stages} swap") for stages in (3, 4, 5))
ROW = "fp8_e4m3[1x*] x fp8_e4m3[1x*]:dynamic"
TENSOR = "fp8_e4m3[*x*] x fp8_e4m3[*x*]:dynamic"
BLOCK = "fp8_e4m3[128x128] x fp8_e4m3[1x128]:dynamic"


class Fake:
    """Stands for Operands: a way takes the time that a table says, or fails."""

    times: dict = {}  # noqa: RUF012
    wrong: frozenset = frozenset()
    made: list = []  # noqa: RUF012

    def __init__(self, form, m, n, k, pool, *, one_scale=False):
        self.m = m
        self.made.append((form, m, n, k, one_scale))

    def time(self, way, replays):
        us = self.times.get(way, 100.0)
        if us is None:
            raise RuntimeError("out of\n resources")
        return us

    def error(self, way):
        return 0.5 if way in self.wrong else 1e-3


@pytest.fixture
def fake(monkeypatch, tmp_path):
    """Return Fake in the place of operands, compilers and the device, with an empty table."""
    monkeypatch.setenv("QUANTDOCK_CACHE", str(tmp_path))
    monkeypatch.setattr(Fake, "times", {})
    monkeypatch.setattr(Fake, "made", [])
    monkeypatch.setattr(Fake, "wrong", frozenset())
    monkeypatch.setattr("torch.cuda.synchronize", lambda: None)
    monkeypatch.setattr("torch.cuda.current_device", lambda: 0)
    monkeypatch.setattr(module, "device_of", lambda index: DEVICE)
    monkeypatch.setattr(module, "Operands", Fake)
    monkeypatch.setattr(module, "Pool", lambda num_bytes: None)
    monkeypatch.setattr(module, "compiled", lambda jobs: iter([""] * len(jobs)))
    tables.measured.cache_clear()
    ways.cache_clear()
    yield Fake
    tables.measured.cache_clear()
    ways.cache_clear()


def problem(text=ROW, n=4096, k=4096, shards=()):
    return Problem(scheme=parse_scheme(text), n=n, k=k, shards=shards or (n,), dtype="bfloat16")


def plan(problems, rows=(16,), **asked):
    tuner = CudaTuner(describe("sm_90"))
    return tuner.plan(problems, rows, **{"thorough": False, "again": False, **asked})


def test_the_fastest_ways_are_kept_and_a_tile_is_among_them(fake):
    fake.times = {A: 9.0, B: 7.0, C: None, LIBRARY: 5.0, DEEP_GEMM: 6.0, "flashinfer": 6.5}
    counted = []
    tried = (A, B, C, LIBRARY, DEEP_GEMM, "flashinfer")
    found = search(fake(Form(), 512, 1, 1, None), tried, counted.append)
    assert found.best == ((5.0, LIBRARY), (6.0, DEEP_GEMM), (6.5, "flashinfer"), (7.0, B))
    assert found.failures == (f"{C}: RuntimeError: out of resources",) and sum(counted) == 6


def test_a_way_that_is_off_is_told_and_not_kept(fake):
    fake.times, fake.wrong = {A: 9.0, "flashinfer": 2.0}, frozenset({"flashinfer"})
    found = search(fake(Form(), 512, 1, 1, None), (A, "flashinfer"), lambda count: None)
    assert found.best == ((9.0, A),) and found.failures == ("flashinfer: off by 5.0e-01",)


def test_the_copy_engine_pays_for_the_host_at_few_rows(fake):
    copied = parse_tile("16x64x128 stages=3 swap tma")
    fake.times = {A: 9.0, copied: 8.9}
    few, many = (search(fake(Form(), m, 1, 1, None), (A, copied), len_of) for m in (16, 512))
    assert few.best[0] == (9.0, A) and many.best[0] == (8.9, copied)


def len_of(count):
    return count


def test_without_any_tile_it_says_why(fake):
    fake.times = {A: None}
    with pytest.raises(RuntimeError, match=r"no tile can be measured: .*out of resources"):
        search(fake(Form(), 16, 1, 1, None), (A,), lambda count: None)


def test_a_case_is_stored_and_from_then_on_taken(fake):
    run = plan([problem()])
    before = ways(Form(), DEVICE, 4096, 4096, 16)[0]
    fake.times = {before: 8.0, LIBRARY: 7.5}
    steps = []
    [done] = run.measure(steps.append)
    assert sum(steps) == run.num_steps and run.num_cases == 1
    assert (done.before.way, done.before.us) == (str(before), 8.0)
    assert (done.after.way, done.after.us) == (LIBRARY, 7.5)
    assert done.rows == 16 and done.num_tried > 10 and done.remarks == ()
    assert ways(Form(), DEVICE, 4096, 4096, 16)[:2] == (LIBRARY, before)


def test_weights_alone_are_measured_as_they_run(fake):
    fake.times = {UNPACK: 6.0, LIBRARY: 7.0}
    alone = Form(weight_only=True)
    [done] = plan([problem("fp8_e4m3[1x*]")]).measure(len_of)
    assert done.before.way == done.after.way == UNPACK
    tables.measured.cache_clear()
    assert ways(alone, DEVICE, 4096, 4096, 16)[:2] == (UNPACK, LIBRARY)
    assert ways(alone, DEVICE, 4096, 4096 + 64, 16)[0] == LIBRARY  # half a block of words


def test_a_case_is_measured_once_unless_it_is_asked_for_again(fake):
    twins = [problem(), problem(), problem(shards=(1024, 3072))]
    assert plan(twins, (1, 9, 16)).num_cases == 2  # 9 rows take the ways of 16
    list(plan(twins, (16,)).measure(len_of))
    left = plan(twins, (1, 16))
    assert (left.num_cases, left.num_known) == (1, 1)
    assert plan(twins, (1, 16), again=True).num_cases == 2


def test_a_case_that_fails_is_told_and_the_next_one_measured(fake, monkeypatch):
    def one_is_too_large(form, m, n, k, pool, *, one_scale=False):
        if n > 10_000:
            raise torch.OutOfMemoryError("CUDA out of memory.\n Tried 9 GiB")
        return Fake(form, m, n, k, pool)

    monkeypatch.setattr(module, "Operands", one_is_too_large)
    failed, done = plan([problem(n=16384), problem(n=64)]).measure(len_of)
    assert failed.after is None and failed.before is None and done.after is not None
    assert failed.remarks == ("16384 x 4096, 16 rows: CUDA out of memory. Tried 9 GiB",)
    assert tables.measured(DEVICE)["row"].keys() == {(64, 4096)}


def test_more_rows_than_ways_are_told_apart_for_are_measured_once(fake):
    assert plan([problem()], (8192, 100_000)).num_cases == 1


def test_an_interruption_keeps_what_is_done(fake):
    run = plan([problem(), problem(BLOCK)])
    for _ in run.measure(len_of):
        break
    assert set(tables.measured(DEVICE)) == {"row"}


def test_operands_are_those_of_the_layer(fake):
    schemes = (TENSOR, ROW, BLOCK, "int8[1x*] x int8[1x*]:dynamic", "fp8_e4m3[128x128]")
    cases = [problem(text) for text in schemes]
    cases.append(problem(TENSOR, shards=(1024, 3072)))  # fused: one scale a row, known already
    list(plan(cases).measure(len_of))
    block = Form(x_cols=128, weight_cols=128, weight_rows=128)
    alone = Form(weight_cols=128, weight_rows=128, weight_only=True)
    assert fake.made == [
        (Form(), 16, 4096, 4096, True),
        (Form(), 16, 4096, 4096, False),
        (block, 16, 4096, 4096, False),
        (Form(element="int8"), 16, 4096, 4096, False),
        (alone, 16, 4096, 4096, False),
    ]
    assert set(tables.measured(DEVICE)) == {
        "tensor",
        "row",
        "block",
        "int8[1x*] x [1x*]",
        "fp8_e4m3[128x128]",
    }


def test_installed_libraries_are_tried_for_what_they_take(fake, monkeypatch):
    monkeypatch.setattr(libraries, "product_for", lambda name, layer: layer.form.is_grouped or None)
    [case] = plan([problem(BLOCK)], (512,))._cases
    names = [way for way in case.ways(DEVICE, False) if isinstance(way, str)]
    assert set(names) == {LIBRARY, DEEP_GEMM, "flashinfer"}
    [case] = plan([problem(BLOCK)], (1,))._cases
    assert LIBRARY not in case.ways(DEVICE, False)  # torch multiplies no single row by blocks
    [case] = plan([problem()], (512,))._cases
    assert all(isinstance(way, Tile) for way in case.ways(DEVICE, False))


def test_thorough_tries_more(fake):
    few, many = (plan([problem(BLOCK)], (64,), thorough=t)._cases[0] for t in (False, True))
    assert set(few.ways(DEVICE, False)) - {LIBRARY} < set(many.ways(DEVICE, True)) | set(
        few.ways(DEVICE, False)
    )
    assert len(many.ways(DEVICE, True)) > 4 * len(few.ways(DEVICE, False))


def test_it_says_which_kernels_have_no_choice(fake):
    tuner = CudaTuner(describe("sm_90"))
    assert tuner.why_not("cuda_fp8", problem()) == ""
    assert "follow from sizes alone" in tuner.why_not("cuda_w4a16", problem())


def test_it_says_what_is_known(fake, monkeypatch):
    tuner = CudaTuner(describe("sm_90"))
    count = sum(map(len, tables.shipped("sm_90").values()))
    assert tuner.state() == f"ways of {count} layer shapes come with the plugin for sm_90"
    path = tables.store(DEVICE, "row", (64, 64), 16, [(1.0, A)])
    assert tuner.state() == f"ways of 1 layer shape were measured on this NVIDIA H200 ({path})"
    monkeypatch.setattr(tables, "version", lambda: "0" * 12)
    tables.measured.cache_clear()
    assert "are of other kernels and not used; `quantdock tune` measures anew" in tuner.state()
