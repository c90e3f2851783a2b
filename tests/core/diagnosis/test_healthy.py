"""Checkpoints without a fault pass all eight checks."""

from __future__ import annotations

import pytest

from demo.models import TINY_LLAMA
from quantdock import doctor
from toy_files import write_block_checkpoint

NAMES = ["name", "metadata", "capability", "dispatch", "shapes", "scales", "kernels", "numbers"]


@pytest.fixture(scope="module")
def block(tmp_path_factory):
    """Return the small Llama as a 128x128-block fp8 checkpoint."""
    return write_block_checkpoint(TINY_LLAMA, tmp_path_factory.mktemp("healthy") / "block")


def test_a_trained_model_passes_all_eight(block):
    report = doctor(block, platform="cpu", base=TINY_LLAMA)
    assert [outcome.name for outcome in report.outcomes] == NAMES
    assert [(outcome.number, outcome.status) for outcome in report.outcomes] == [
        (number, "pass") for number in range(1, 9)
    ]
    assert report.exit_code == 0
    figures = report["numbers"].details
    assert len(figures["layers"]) == 28
    assert all(row["error"] <= row["tolerance"] == 2.0**-8 for row in figures["layers"])
    assert all(0.01 < row["base_error"] < 0.06 for row in figures["layers"]), "what fp8 explains"
    assert 1 < figures["perplexity"] < figures["vocabulary"] == 1024


def test_a_plain_model_passes_and_is_its_own_base_when_quantized_at_load(block):
    plain = doctor(TINY_LLAMA, platform="cpu")
    assert {outcome.status for outcome in plain.outcomes} == {"pass"}
    assert plain.method == "none" and plain["numbers"].details["layers"] == []
    online = doctor(TINY_LLAMA, "fp8_per_channel", platform="cpu", layers="layers.2.mlp")
    assert online.status == "pass"
    rows = online["numbers"].details["layers"]
    assert [row["layer"] for row in rows] == [
        f"model.layers.2.mlp.{part}_proj" for part in ("gate", "up", "down")
    ]
    assert all(row["base_error"] == row["explained"] > 0 for row in rows), "its own rounding"


def test_decoding_a_quantized_model_passes(block):
    report = doctor(block, "none", platform="cpu")
    assert report.status == "pass"
    assert report["scales"].summary.startswith("28 quantized layers")
    assert report["numbers"].details["layers"] == []


def test_a_checkpoint_of_another_tool_passes(shared):
    report = doctor(shared / "models" / "fp8block-128x128", platform="cpu")
    assert {outcome.status for outcome in report.outcomes} == {"pass"}


def test_quick_reads_headers_only(block):
    report = doctor(block, platform="cpu", quick=True)
    found = {outcome.name: outcome.status for outcome in report.outcomes}
    assert found == dict.fromkeys(NAMES, "pass") | {"scales": "skip", "numbers": "skip"}
    assert "quick" in report["scales"].summary and "quick" in report["numbers"].summary


def test_another_machine_is_examined_without_running(block):
    pytest.importorskip("quantdock_rocm", reason="needs the plugin quantdock-rocm")
    report = doctor(block, platform="rocm:gfx942")
    assert report["scales"].status == "pass", "fnuz codes are decoded here"
    assert report["numbers"].status == "skip"
    assert report["numbers"].summary == "rocm:gfx942 is described: it is not this machine"
