"""The check of a device machine, with a Python that only says what it was asked to run."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "scripts" / "device_check.sh"
TABLES = ROOT / "benchmarks" / "cuda"
# The first argument after -m says what is run; a table called overhead fails.
FAKE = """#!/usr/bin/env bash
case "$*" in
    -c*) exit {no_gpu} ;;
    *overhead*) echo "no such kernel" && exit 3 ;;
    *gemm*) sleep {seconds} ;;
    -) cat >/dev/null ;;
esac
printf '%s\\n\\n' "ran $*"
"""


@pytest.fixture
def check(tmp_path):
    """Return what runs the script with settings, and gives back its status and its lines."""

    def run(*, gpu=True, seconds=0, **settings):
        fake = tmp_path / "python"
        fake.write_text(FAKE.format(no_gpu=int(not gpu), seconds=seconds))
        fake.chmod(0o755)
        env = {name: value for name, value in os.environ.items() if name != "STAGES"}
        done = subprocess.run(
            ["bash", str(SCRIPT), str(tmp_path / "wheels"), str(tmp_path / "out")],
            env=env | {"PYTHON": str(fake)} | settings,
            capture_output=True,
            text=True,
        )
        assert done.stderr == ""
        return done.returncode, done.stdout.splitlines()

    return run


def _stages(lines):
    """Return the rows of the table that comes last, split into words."""
    return [line.split() for line in lines[lines.index("== stages") + 1 :]]


def test_a_gpu_runs_its_tests_and_every_table_of_the_kernels(check):
    status, lines = check()
    rows = _stages(lines)
    tables = ("gemm", "w4a16", "batch_invariant", "experts", "quantize", "small_floats", "overhead")
    assert [row[0] for row in rows] == ["tests", *(f"cuda-{name}" for name in tables)]
    assert {row[3] for row in rows[:-1]} == {"passed"} and rows[-1][3:5] == ["failed", "3"]
    assert rows[-1][5:] == ["no", "such", "kernel"] and status == 1
    assert "ran -m benchmarks.cuda.experts" in lines
    log = next(line for line in lines if line.startswith("ran -m pytest"))
    assert "-m device tests/device" in log


def test_the_tables_are_those_that_there_are(check):
    apart = {"tune", "generate"}  # makes a file; is a stage of its own
    programs = {p.stem for p in TABLES.glob("*.py") if '__name__ == "__main__"' in p.read_text()}
    _, lines = check(STAGES="cuda")
    assert {row[0].removeprefix("cuda-") for row in _stages(lines)} == programs - apart


def test_without_a_gpu_the_cpu_is_measured(check):
    status, lines = check(gpu=False)
    assert status == 0
    names = [row[0] for row in _stages(lines)]
    assert names[:3] == ["tests", "core", "cpu-1-threads"] and re.match(r"cpu-\d+", names[3])


def test_chosen_tables_and_a_step_that_does_not_end(check):
    status, lines = check(STAGES="cuda", TABLES="gemm quantize", LIMIT="1", seconds=30)
    rows = _stages(lines)
    assert [row[0] for row in rows] == ["cuda-gemm", "cuda-quantize"] and status == 1
    assert rows[0][3:5] == ["failed", "124"] and rows[1][3] == "passed"


def test_the_decoder_of_some_layers(check):
    _, lines = check(STAGES="generate", GENERATE="--layers 32 bf16", GENERATE_FOLDER="/x")
    (ran,) = [line for line in lines if line.startswith("ran -m benchmarks.cuda.generate")]
    assert ran.endswith("--layers 8 --folder /x --layers 32 bf16")


def test_a_stage_that_there_is_not(check):
    status, lines = check(STAGES="tensts")
    assert status == 2
    assert lines[-1] == "No stage is called tensts: tests, core, cpu, cuda, generate."
