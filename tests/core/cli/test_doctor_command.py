"""``quantdock doctor`` as a person meets it."""

from __future__ import annotations

import json

import pytest

import toy_llama as toy
from quantdock.cli.app import run
from quantdock.diagnosis.checks import CHECKS


@pytest.fixture
def command(capsys):
    """Return a function that runs one command line: (exit code, stdout, stderr)."""

    def call(*arguments):
        code = run([str(a) for a in arguments])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


@pytest.fixture
def checkpoint(tmp_path):
    return toy.write(tmp_path / "toy", toy.llama("128x128"), toy.BLOCK)


def test_a_healthy_checkpoint_ends_in_zero(command, checkpoint):
    code, out, _ = command("doctor", checkpoint, "--platform", "cpu")
    assert code == 0
    lines = [line for line in out.splitlines() if line[:1].isdigit()]
    assert [line.split()[:3] for line in lines] == [
        [str(number), "pass", check.name] for number, check in enumerate(CHECKS, 1)
    ]
    assert out.rstrip().endswith("Nothing is wrong that these checks can see.")


def test_a_fault_is_told_with_reason_and_remedy_and_ends_in_one(command, checkpoint):
    code, out, _ = command("doctor", checkpoint, "--platform", "cpu", "--quick", "--tp", 3)
    assert code == 1
    assert "5 fail  shapes" in out
    assert "fail: 3 ranks cannot divide the model." in out
    assert "-> Numbers of ranks that divide every layer: 1, 2, 4." in out
    assert "1 of 8 checks failed; begin with 5 (shapes)." in out


def test_warnings_end_in_zero(command, checkpoint):
    code, out, _ = command("doctor", checkpoint, "--quick", "--dtype", "float16")
    assert code == 0
    assert "3 warn  capability" in out and "Nothing failed; 1 with warnings." in out


def test_json_is_the_whole_report(command, checkpoint):
    code, out, _ = command(
        "doctor", checkpoint, "--quick", "--json", "--platform", "cpu", "-q", "fp9"
    )
    assert code == 1
    content = json.loads(out)
    assert (content["schema"], content["status"]) == (1, "fail")
    assert [outcome["name"] for outcome in content["outcomes"]][:2] == ["name", "metadata"]
    finding = content["outcomes"][0]["findings"][0]
    assert finding["level"] == "fail" and "fp9" in finding["what"]
    assert set(finding) == {"level", "what", "why", "todo", "names"}


def test_a_folder_that_is_not_there_is_a_fault_of_check_two(command):
    code, out, _ = command("doctor", "/no/such/folder")
    assert code == 1
    assert "2 fail  metadata" in out and "There is no folder /no/such/folder" in out
