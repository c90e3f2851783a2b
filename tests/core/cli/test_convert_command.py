"""``quantdock convert`` as a person meets it: progress, the report, mistakes in one paragraph."""

from __future__ import annotations

import json

import pytest

from demo.models import TINY_LLAMA
from quantdock.cli.app import run
from quantdock.cli.convert_command import parse_size
from quantdock.convert.conversion import Conversion
from quantdock.errors import ConfigError


@pytest.fixture
def command(capsys):
    """Return a function that runs one command line: (exit code, stdout, stderr)."""

    def call(*arguments):
        code = run(["convert", *(str(a) for a in arguments)])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


def test_it_prints_the_folder_and_what_it_came_to(command, tmp_path):
    code, out, err = command(TINY_LLAMA, tmp_path / "out", "--to", "fp8_per_block")
    assert (code, out) == (0, f"{tmp_path / 'out'}\n")
    assert "written as transformers' fine-grained fp8" in err
    assert "28 layers converted; " in err and err.rstrip().endswith("in 1 file")
    assert err.startswith("warning: 12 layers end in a part of a tile") and "\n\n" not in err
    assert run(["generate", str(tmp_path / "out"), "And", "--max-new-tokens", "2"]) == 0


def test_options_reach_the_conversion(command, tmp_path):
    code, _, err = command(
        TINY_LLAMA, tmp_path / "out", "--to", "fp8-per-channel", "--ignore", "layers.0.mlp",
        "--choose", "*.o_proj=none", "--max-shard-size", "500 kB",
    )  # fmt: skip
    assert code == 0
    assert f"{28 - 3 - 4} layers converted" in err
    assert len(list((tmp_path / "out").glob("model-*.safetensors"))) > 1


def test_options_of_integers_reach_the_conversion_and_codes_move_on(command, tmp_path):
    options = ("--to", "gptq", "--bits", "8", "--group-size", "32", "--asymmetric")
    code, _, err = command(TINY_LLAMA, tmp_path / "gptq", *options)
    assert code == 0 and "no data was used, nothing is calibrated" in err
    block = json.loads((tmp_path / "gptq" / "config.json").read_text())["quantization_config"]
    assert (block["bits"], block["group_size"], block["sym"]) == (8, 32, False)
    code, _, err = command(tmp_path / "gptq", tmp_path / "ct", "--to", "compressed-tensors")
    assert code == 0 and "moved from gptq to compressed-tensors, nothing rounded" in err
    assert run(["generate", str(tmp_path / "ct"), "And", "--max-new-tokens", "2"]) == 0


def test_fp4_runs_and_becomes_fp8_and_what_changes_is_said(command, tmp_path):
    code, _, err = command(TINY_LLAMA, tmp_path / "fp4", "--to", "mxfp4", "--ignore", "*.down_proj")
    assert code == 0 and "inputs stay as they are; --to mxfp4a4 quantizes them, too" in err
    assert run(["generate", str(tmp_path / "fp4"), "And", "--max-new-tokens", "2"]) == 0
    code, _, err = command(tmp_path / "fp4", tmp_path / "fp8", "--to", "mxfp8", "--exact")
    assert code == 0 and "exact: all " in err and "written as compressed-tensors" in err
    command(TINY_LLAMA, tmp_path / "rows", "--to", "fp8_per_channel")
    code, _, err = command(tmp_path / "rows", tmp_path / "x", "--to", "mxfp8", "--exact")
    assert code == 1 and "cannot become mxfp8 without changing values" in err
    code, _, err = command(tmp_path / "rows", tmp_path / "x", "--to", "mxfp8")
    assert code == 0 and "not exact: " in err


def test_an_interruption_says_how_to_go_on(command, tmp_path, monkeypatch):
    def interrupted(self, advance):
        raise KeyboardInterrupt

    monkeypatch.setattr(Conversion, "run", interrupted)
    code, out, err = command(TINY_LLAMA, tmp_path / "out", "--to", "mxfp8")
    assert (code, out) == (130, "")
    assert "the same command goes on from here" in err


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("/no/such/folder", "out", "--to", "mxfp8"), "/no/such/folder"),
        ((TINY_LLAMA, TINY_LLAMA, "--to", "mxfp8"), "is the folder that is to be converted"),
        ((TINY_LLAMA, "out", "--to", "int4"), "--to is 'int4'"),
        ((TINY_LLAMA, "out", "--to", "none"), "nothing to decode"),
        ((TINY_LLAMA, "out", "--to", "awq", "--bits", "8"), "awq cannot be written with --bits 8"),
        ((TINY_LLAMA, "out", "--to", "awq"), "is no multiple of the group size, 128"),
        ((TINY_LLAMA, "out", "--to", "mxfp8", "--choose", "nonsense"), "nonsense"),
        ((TINY_LLAMA, "out", "--to", "mxfp8", "--max-shard-size", "big"), "'big' is no size"),
        ((TINY_LLAMA, "out", "--to", "mxfp8", "--ignore", "*"), "no layer of"),
    ],
)
def test_mistakes_end_in_one_paragraph(command, tmp_path, monkeypatch, arguments, text):
    monkeypatch.chdir(tmp_path)
    code, out, err = command(*arguments)
    assert (code, out) == (1, "")
    assert err.startswith("error: ") and "Traceback" not in err and "\n\n" not in err.strip()
    assert text in err.replace("\n", " ")
    assert list(tmp_path.iterdir()) == []


def test_the_scheme_must_be_named(command, tmp_path):
    code, _, err = command(TINY_LLAMA, tmp_path / "out")
    assert code == 2 and "--to" in err


@pytest.mark.parametrize(
    ("text", "size"),
    [("5GB", 5 * 10**9), ("500 MiB", 500 * 2**20), ("1.5g", 1_500_000_000), ("700", 700)],
)
def test_sizes(text, size):
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "GB", "5 T", "-1GB", "5GBs"])
def test_what_is_no_size_is_refused(text):
    with pytest.raises(ConfigError, match="is no size"):
        parse_size(text)
