"""What a person reads."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from quantdock import explain
from quantdock.kernel import Rejection
from quantdock.plan import LayerPlan, Plan, Swap
from quantdock.plan.render import render, render_remarks
from tests.sparse_files import LLAMA_CONFIG, deepseek, write_checkpoint

SCHEME = "fp8_e4m3[128x128] x fp8_e4m3[1x128]:dynamic"


def layer(prefix: str, **facts) -> LayerPlan:
    usual = {
        "kind": "linear",
        "decision": "quantized",
        "scheme": SCHEME,
        "because": "the file stores it so",
        "source": "the headers",
        "kernel": "block_gemm",
        "n": 256,
        "k": 128,
        "bytes_stored": 32_776,
        "bytes_memory": 32_776,
    }
    return LayerPlan(prefix=prefix, **{**usual, **facts})


def plan_of(*layers: LayerPlan, **facts) -> Plan:
    usual = {
        "level": 2,
        "checkpoint": "/models/x",
        "model_type": "llama",
        "method": "fp8",
        "method_source": "config.json says fp8",
        "platform": "toy:t1",
        "described": True,
        "dtype": "bfloat16",
        "layers": layers,
    }
    return Plan(**{**usual, **facts})


def text_of(plan: Plan, width: int = 80) -> str:
    """Return what is printed on a terminal of that width, which nothing may exceed."""
    file = io.StringIO()
    render(plan, Console(file=file, width=width))
    text = file.getvalue()
    assert max(len(line.rstrip()) for line in text.splitlines()) <= width
    return text


def flat(text: str) -> str:
    return " ".join(text.split())


def test_the_head_says_what_where_and_how_much():
    text = flat(text_of(plan_of(layer("a.0.up"), layer("a.1.up"), bytes_other=512)))
    assert "checkpoint /models/x (llama)" in text
    assert "method fp8: config.json says fp8" in text
    assert "platform toy:t1, described: not this machine; bfloat16 activations" in text
    assert "2 of 2 quantized; 65.6 kB in files, 65.6 kB in memory" in text
    assert "512 B of norms" in text


def test_equal_layers_are_one_row_under_what_they_run():
    text = text_of(plan_of(*(layer(f"model.layers.{i}.mlp.up_proj") for i in range(61))))
    assert f"61 quantized  {SCHEME}" in text
    assert "block_gemm" in text and "the file stores it so (the headers)" in text
    row = next(line for line in text.splitlines() if "up_proj" in line)
    assert row.split() == ["model.layers.{0-60}.mlp.up_proj", "61", "256", "x", "128", "2.0", "MB"]


def test_files_and_memory_are_two_columns_where_they_differ():
    text = text_of(plan_of(layer("up", bytes_stored=65_536)))
    assert "files" in text and "memory" in text and "65.5 kB" in text


def test_reasons_shared_by_layers_with_different_sources_name_each():
    layers = (layer(name, source=f"ignore[0] = '{name}'") for name in ("lm_head", "mtp.fc"))
    text = text_of(plan_of(*layers))
    assert text.count("the file stores it so") == 1
    assert "ignore[0] = 'lm_head'" in text and "ignore[0] = 'mtp.fc'" in text


def test_a_substitution_and_a_missing_kernel():
    swap = Swap(source=SCHEME, target="fp8_e4m3[128x128]", why="no cores", accuracy="as good")
    rejected = (
        Rejection(kernel="fast", reasons=("K=100 is no multiple of 64", "lacks ['mma']")),
        Rejection(kernel="", reasons=("nothing else is offered",)),
    )
    lacking = layer("up", kernel=None, kernel_note="Do this.", substitution=swap, rejected=rejected)
    text = flat(text_of(plan_of(lacking, lacking.renamed("down"))))
    assert "2 of 2 quantized, 2 of them without a kernel here" in text
    assert "runs as fp8_e4m3[128x128]: no cores accuracy as good" in text
    assert "kernel none remedy Do this." in text
    assert "fast K=100 is no multiple of 64 (2 layers)" in text
    assert "fast lacks ['mma'] (2 layers)" in text
    assert "nothing else is offered (2 layers)" in text


def test_errors_come_first_then_quantized_then_the_rest():
    text = text_of(
        plan_of(
            layer("a", decision="unquantized", scheme=None, kernel=None),
            layer("b"),
            layer("c", decision="error", scheme=None, kernel=None, because="no scale"),
        )
    )
    positions = [text.index(f"1 {word}") for word in ("error", "quantized", "unquantized")]
    assert positions == sorted(positions)


def test_all_that_needs_attention_is_listed():
    text = flat(
        text_of(
            plan_of(
                layer("a"),
                warnings=("w1", "w2"),
                notes=("n1", "the file stores it so"),
                ignore_unmatched=tuple(f"e{i}" for i in range(8)),
                unused=("mtp.fc.weight",),
                unsupported="known, not yet: dialect x",
            )
        )
    )
    assert "warning: w1 warning: w2 note: n1" in text
    assert text.count("the file stores it so") == 1
    assert "entries that match no layer: e0, e1, e2, e3, e4 and 3 more" in text
    assert "tensors not used: mtp.fc.weight" in text and "known, not yet: dialect x" in text


def test_rules_have_no_sizes():
    rule = layer("model.layers.16.mlp.up_proj", n=None, k=None, bytes_stored=None)
    text = text_of(plan_of(level=1, rules=(rule,)))
    assert "Layers of these names would be" in text and "model.layers.16.mlp.up_proj" in text
    assert "N x K" not in text


@pytest.mark.parametrize("width", [80, 100, 200])
def test_long_names_break_at_dots_and_nothing_else_breaks(tmp_path, width):
    config = {**LLAMA_CONFIG, "num_hidden_layers": 2}
    folder = write_checkpoint(tmp_path / "m", config, deepseek(layers=2, experts=3))
    text = text_of(explain(folder, platform="cpu:generic"), width)
    rows = [line.split() for line in text.splitlines() if " x " in line and "experts" in line]
    assert len(rows) == 3 and all(
        row[0].startswith("model.layers.{0-1}.mlp.experts") for row in rows
    )
    assert "2048 x 7168" in text


def test_text_in_brackets_is_no_markup():
    assert "lacks [bold] and [/]" in text_of(
        plan_of(layer("a"), warnings=("lacks [bold] and [/]",))
    )


def test_remarks_are_all_that_needs_attention():
    swap = Swap(source=SCHEME, target="fp8_e4m3[128x128]", why="no fp8 cores", accuracy="closer")
    plan = plan_of(
        layer("l.0.up", substitution=swap),
        layer("l.1.up", substitution=swap),
        layer("l.2.up"),
        warnings=("look",),
        notes=("see",),
        ignore_unmatched=("ignore[0] = 'x'",),
        unused=("l.9.up.bias",),
    )
    file = io.StringIO()
    render_remarks(plan, Console(file=file, width=200))
    assert [line for line in file.getvalue().splitlines() if line] == [
        f"note: 2 layers run as fp8_e4m3[128x128] instead of {SCHEME}: no fp8 cores",
        "warning: look",
        "note: see",
        "entries that match no layer: ignore[0] = 'x'",
        "tensors not used: l.9.up.bias",
    ]
