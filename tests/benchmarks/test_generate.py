"""The decoder that is measured end to end, in small: its checkpoints, and its table of rows."""

from __future__ import annotations

import sys

import pytest
import torch

import quantdock
from benchmarks.cuda.decoder import PLAIN, STORED, checkpoint

SIZES = {
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "vocab_size": 512,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return the folder that checkpoints are written to."""
    return tmp_path_factory.mktemp("decoders")


@pytest.fixture(scope="module")
def logits(folder):
    """Return what gives the logits of a prompt, of the decoder that is stored in one way."""

    def of(name):
        source = checkpoint(folder, name, 1, "cpu", **SIZES)
        model = quantdock.load(source, None, "cpu", "float32")
        with torch.no_grad():
            values = model(input_ids=torch.arange(64)[None]).logits[0]
        return values, model.quantdock_plan

    return of


@pytest.mark.parametrize("name", STORED)
def test_a_stored_decoder_computes_about_what_the_plain_one_does(logits, name):
    plain, _ = logits(PLAIN)
    values, plan = logits(name)
    assert 0 < float((values - plain).norm() / plain.norm()) < (0.1 if "8" in name else 0.3)
    assert "7 of 9 layers quantized" in plan.summary()


@pytest.fixture
def generate():
    """Return the module; it says which Triton measured."""
    pytest.importorskip("triton", reason="needs triton")
    from benchmarks.cuda import generate

    return generate


def test_rows_come_in_the_order_of_the_ways(generate):
    rows = {
        "awq": {"load s": 1.25, "kept GiB": 0.5},
        "fp8_per_block": {"why": "needs x, not installed"},
    }
    head, rule, first, second = generate.table(rows)
    assert head.startswith("| weights | load s | load peak GiB | kept GiB | prefill 2048 tok/s |")
    assert rule.count("---") == head.count("|") - 1
    assert first == "| fp8_per_block | needs x, not installed |"
    assert second.startswith("| awq | 1.2 | - | 0.500 | - |")


def test_a_way_that_fails_costs_no_other_its_row(generate, monkeypatch, tmp_path, capsys):
    def measure(name, folder, layers):
        if name == "awq":
            raise RuntimeError("no codes\nand more")
        return {"load s": 1.0}

    results = tmp_path / "rows.json"
    monkeypatch.setattr(generate, "measure", measure)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "a GPU")
    monkeypatch.setattr(sys, "argv", ["generate", "--results", str(results), "awq", "gptq"])
    with pytest.raises(SystemExit, match=r"^Without figures: awq\.$"):
        generate.main()
    assert "| awq | RuntimeError: no codes |" in capsys.readouterr().out
    monkeypatch.setattr(sys, "argv", ["generate", "--results", str(results), "--show"])
    with pytest.raises(SystemExit):
        generate.main()
    assert "| gptq | 1.0 | - |" in capsys.readouterr().out


@pytest.mark.parametrize("package", ["no_such_package", "no_such_package.part"])
def test_a_peer_that_is_not_installed(generate, monkeypatch, tmp_path, package):
    from benchmarks.cuda.ways import Way

    monkeypatch.setitem(generate.WAYS, "peer", Way(is_peer=True, needs=(package,)))
    row = generate.attempt("peer", tmp_path, 1)
    assert row == {"why": f"needs {package}, not installed"}
