"""The plan as data: totals, JSON and back, pickle."""

from __future__ import annotations

import json
import pickle
from dataclasses import fields, replace

import pytest

from quantdock.errors import ConfigError
from quantdock.kernel import Rejection
from quantdock.plan import LayerPlan, Plan, Swap
from quantdock.plan.plan import show_bytes

REJECTED = (Rejection(kernel="fast", reasons=("K=5 is no multiple of 16", "lacks ['mma']")),)
LAYERS = (
    LayerPlan(
        prefix="a.0",
        kind="linear",
        decision="quantized",
        scheme="fp8_e4m3[*x*]",
        because="stored so",
        source="headers",
        kernel="reference",
        kernel_note="slow",
        substitution=Swap(source="x", target="y", why="no cores", accuracy="same"),
        rejected=REJECTED,
        n=8,
        k=5,
        bytes_stored=44,
        bytes_memory=44,
        warnings=("w",),
    ),
    LayerPlan(
        prefix="a.1",
        kind="linear",
        decision="quantized",
        scheme="z",
        because="b",
        source="s",
        rejected=REJECTED,
        bytes_stored=10,
        bytes_memory=6,
    ),
    LayerPlan(prefix="b", kind="head", decision="unquantized", because="b", source="s"),
    LayerPlan(prefix="c", kind="linear", decision="error", because="bad", source="s"),
)
PLAN = Plan(
    level=2,
    checkpoint="/models/x",
    model_type="llama",
    method="fp8",
    method_source="config.json says fp8",
    platform="cpu:generic",
    described=True,
    dtype="bfloat16",
    layers=LAYERS,
    rules=LAYERS[2:3],
    notes=("note",),
    warnings=("warning",),
    ignore_matched=("ignore[0] = 'b'",),
    ignore_unmatched=("ignore[1] = 'q'",),
    unused=("mtp.fc.weight",),
    bytes_other=7,
    unsupported="known, not yet: dialect x",
)


def test_totals():
    totals = PLAN.totals
    assert (totals.layers, totals.quantized, totals.unquantized, totals.errors) == (4, 2, 1, 1)
    assert (totals.without_kernel, totals.bytes_stored, totals.bytes_memory) == (1, 54, 50)
    assert totals.bytes_other == 7


def test_json_and_back():
    text = PLAN.to_json()
    assert Plan.from_json(text) == PLAN
    assert Plan.from_json(text).to_json() == text


def test_json_has_a_version_and_keeps_lists_of_rejections_once():
    content = json.loads(PLAN.to_json())
    assert content["schema"] == "quantdock.plan/1"
    assert content["rejections"][0] == [{"kernel": "fast", "reasons": list(REJECTED[0].reasons)}]
    assert [layer["rejected"] for layer in content["layers"]] == [0, 0, 1, 1]
    assert content["totals"]["quantized"] == 2
    assert set(content) == {"schema", "totals", "rejections"} | {f.name for f in fields(Plan)}
    assert set(content["layers"][0]) == {f.name for f in fields(LayerPlan)}


def test_fields_of_schema_one_are_never_removed():
    content = json.loads(PLAN.to_json())
    assert {
        *("level", "checkpoint", "model_type", "method", "method_source", "platform", "described"),
        *("dtype", "layers", "rules", "notes", "warnings", "ignore_matched", "ignore_unmatched"),
        *("unused", "bytes_other", "unsupported", "totals", "rejections", "schema"),
    } <= set(content)
    assert {
        *("prefix", "kind", "decision", "scheme", "because", "source", "kernel", "kernel_note"),
        *("substitution", "rejected", "n", "k", "bytes_stored", "bytes_memory", "warnings"),
    } <= set(content["layers"][0])


def test_a_later_plan_with_more_fields_is_read():
    content = json.loads(PLAN.to_json()) | {"more": 1}
    assert Plan.from_json(json.dumps(content)) == PLAN


def test_another_schema_is_refused():
    with pytest.raises(ConfigError, match=r"schema 'quantdock\.plan/9'"):
        Plan.from_json('{"schema": "quantdock.plan/9"}')


def test_a_plan_can_be_pickled_hashed_and_not_changed():
    assert pickle.loads(pickle.dumps(PLAN)) == PLAN
    assert hash(PLAN) == hash(replace(PLAN))
    with pytest.raises(AttributeError):
        PLAN.level = 3
    with pytest.raises(AttributeError):
        PLAN.layers[0].prefix = "x"


def test_a_renamed_layer_differs_in_its_name_only():
    renamed = LAYERS[0].renamed("z.9")
    assert renamed == replace(LAYERS[0], prefix="z.9")
    assert LAYERS[0].prefix == "a.0"


def test_summary_and_sizes():
    assert PLAN.summary() == (
        "fp8 on cpu:generic: 2 of 4 layers quantized, 54 B in files, 50 B in memory"
    )
    assert [show_bytes(size) for size in (0, 999, 1000, 999_949, 5 * 10**12)] == [
        "0 B",
        "999 B",
        "1.0 kB",
        "999.9 kB",
        "5.0 TB",
    ]


@pytest.mark.parametrize("text", ["{", "[]", "3", '{"schema": "quantdock.plan/1"}', ""])
def test_what_is_no_plan_is_an_error_that_says_so(text):
    with pytest.raises(ConfigError, match="This is no plan in JSON"):
        Plan.from_json(text)
