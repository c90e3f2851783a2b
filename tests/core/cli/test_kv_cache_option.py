"""``--kv-cache`` on the command line."""

from __future__ import annotations

import pytest

from demo.models import TINY_LLAMA
from quantdock.cli.app import run


@pytest.fixture
def command(capsys):
    """Return a function that runs one command line: (exit code, stdout, stderr)."""

    def call(*arguments):
        code = run([str(a) for a in arguments])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


def test_generate_keeps_codes_and_says_so(command):
    code, out, err = command(
        "generate", TINY_LLAMA, "In the beginning", "--kv-cache", "int8", "--max-new-tokens", 4
    )
    assert code == 0 and out.startswith("In the beginning")
    assert "KV cache in int8[token]:dynamic" in err.replace("\n", " ")


def test_explain_shows_what_a_token_takes(command):
    code, out, _ = command("explain", TINY_LLAMA, "--kv-cache", "fp8")
    assert code == 0
    assert "KV cache  fp8_e4m3[token]:dynamic" in out
    assert "1.1 kB a token in 4 layers" in out


def test_a_wrong_word_ends_in_one_paragraph(command):
    code, out, err = command("explain", TINY_LLAMA, "--kv-cache", "fp3")
    assert (code, out) == (1, "")
    assert err.startswith("error: kv_cache='fp3' is not known.")
    assert "known: auto, none, fp8, fp8_e5m2, int8" in err
