"""The command line as a person meets it: what it prints, how it fails."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from demo.models import TINY_LLAMA
from quantdock.cli.app import run
from toy_files import write_block_checkpoint


@pytest.fixture(scope="module")
def block(tmp_path_factory):
    """Return the small Llama as a 128x128-block fp8 checkpoint."""
    return write_block_checkpoint(TINY_LLAMA, tmp_path_factory.mktemp("cli") / "block")


@pytest.fixture
def command(capsys):
    """Return a function that runs one command line: (exit code, stdout, stderr)."""

    def call(*arguments):
        code = run([str(a) for a in arguments])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


def one_paragraph(text):
    return text.startswith("error: ") and "Traceback" not in text and "\n\n" not in text.strip()


def test_generate_prints_the_prompt_and_its_continuation(command, block):
    code, out, err = command("generate", block, "In the beginning", "--max-new-tokens", 8)
    assert code == 0
    assert out.startswith("In the beginning") and len(out) > len("In the beginning") + 8
    assert "tokens/s" in err and "fp8" in err


def test_generate_quantizes_at_load(command):
    code, out, err = command(
        "generate", TINY_LLAMA, "And it came to pass", "-q", "fp8_per_channel",
        "--max-new-tokens", 4, "--ignore", "model.layers.0.mlp",
    )  # fmt: skip
    assert code == 0
    assert out.startswith("And it came to pass")
    assert "fp8_per_channel" in err


def test_explain_shows_layers_and_reasons(command, block):
    code, out, _ = command("explain", block)
    assert code == 0
    assert "fp8_e4m3[128x128]" in out
    assert "model.layers.{0-3}.mlp.down_proj" in out
    assert "tied to the embedding" in out
    assert "match no layer" not in out  # modules_to_not_convert names the head


def test_explain_json_is_a_plan(command, block):
    from quantdock import Plan

    pytest.importorskip("quantdock_rocm", reason="needs the plugin quantdock-rocm")
    code, out, _ = command("explain", block, "--json", "--platform", "rocm:gfx942")
    assert code == 0
    assert json.loads(out)["platform"] == "rocm:gfx942"
    plan = Plan.from_json(out)
    schemes = {layer.scheme for layer in plan.layers if layer.decision == "quantized"}
    assert schemes == {"fp8_e4m3fnuz[128x128] x fp8_e4m3fnuz[1x128]:dynamic"}


def test_plugins_lists_distributions_platforms_and_names(command):
    code, out, _ = command("plugins")
    assert code == 0
    assert "quantdock" in out and "fp8_per_channel" in out and "cpu" in out


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("explain", "/no/such/folder"), "/no/such/folder"),
        (("generate", "/no/such/folder", "x"), "/no/such/folder"),
        (("explain", TINY_LLAMA, "-q", "fp9"), "fp9"),
        (("generate", TINY_LLAMA, "x", "-q", "gptq"), "gptq"),
        (("explain", TINY_LLAMA, "--platform", "cuda:sm_1"), "sm_1"),
        (("explain", TINY_LLAMA, "--platform", "abacus"), "abacus"),
        (("generate", TINY_LLAMA, "x", "--dtype", "int8"), "int8"),
        (("generate", TINY_LLAMA, "x", "--device", "gpu9"), "gpu9"),
        (("generate", TINY_LLAMA, "x", "--choose", "nonsense"), "nonsense"),
        (("generate", TINY_LLAMA, "x", "-q", "fp8", "--require", "no_kernel"), "no_kernel"),
        (("generate", TINY_LLAMA, "x", "-q", "fp8", "--ignore", "*"), "no layer"),
    ],
)
def test_mistakes_end_in_one_paragraph(command, arguments, text):
    code, out, err = command(*arguments)
    assert code == 1
    assert out == ""
    assert one_paragraph(err), err
    assert text in err.replace("\n", " ")


@pytest.mark.parametrize(
    "arguments", [("generate",), ("explain", TINY_LLAMA, "--nonsense"), ("nonsense",)]
)
def test_wrong_arguments_are_usage_errors(command, arguments):
    code, _, err = command(*arguments)
    assert code == 2
    assert "Usage" in err


def test_a_broken_file_ends_in_one_paragraph(command, block, tmp_path):
    for path in block.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-50])
    code, _, err = command("generate", tmp_path, "x")
    assert code == 1 and one_paragraph(err) and "model.safetensors" in err
    (tmp_path / "config.json").write_text("{")
    code, _, err = command("explain", tmp_path)
    assert code == 1 and one_paragraph(err) and "config.json" in err


def test_debug_shows_the_traceback():
    command = [sys.executable, "-m", "quantdock", "explain", "/no/such/folder"]
    plain = subprocess.run(command, capture_output=True, text=True)
    debug = subprocess.run([*command, "--debug"], capture_output=True, text=True)
    assert plain.returncode == debug.returncode == 1
    assert "Traceback" not in plain.stderr
    assert "Traceback" in debug.stderr and "/no/such/folder" in debug.stderr


def test_generate_tells_what_the_layers_do_not_show(command):
    code, out, err = command(
        "generate", TINY_LLAMA, "Hi", "-q", "fp8", "--ignore", "nope.*", "--max-new-tokens", 1
    )
    assert code == 0
    assert out.count("\n") == 1
    assert not err.startswith("\n") and "\n1 token in " in err
    assert "entries that match no layer: ignore[0] = 'nope.*'" in err
    assert "note: fp8 is " in err


def test_a_refusal_of_the_system_is_no_fault_of_ours(command, monkeypatch):
    def full(*arguments, **options):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("quantdock.plan.render.render", full)
    code, _, err = command("explain", TINY_LLAMA)
    assert code == 1
    assert err == "error: The system refuses: [Errno 28] No space left on device.\n"


def test_what_fails_after_an_interrupt_is_not_told(capsys, monkeypatch):
    def half_imported(*arguments, **options):
        raise RecursionError("maximum recursion depth exceeded")

    monkeypatch.setattr("quantdock.plan.render.render", half_imported)
    assert run(["explain", str(TINY_LLAMA)], interrupts=[2]) == 130
    assert capsys.readouterr().err == ""
    assert run(["explain", str(TINY_LLAMA)]) == 1
    assert capsys.readouterr().err.startswith("error: Unexpected RecursionError: maximum")


def test_letters_that_the_terminal_lacks_are_replaced(tmp_path):
    (tmp_path / "mod\u00e8le").symlink_to(TINY_LLAMA)
    command = [sys.executable, "-m", "quantdock", "explain", "mod\u00e8le"]
    narrow = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=narrow)
    assert done.returncode == 0, done.stderr
    assert "mod?le" in done.stdout
