"""Layers that differ in their numbers only are one row."""

from __future__ import annotations

import pytest

from quantdock.plan import LayerPlan
from quantdock.plan.grouping import collapse, collapse_all, group_layers


def layer(prefix: str, **facts) -> LayerPlan:
    usual = {"kind": "linear", "decision": "quantized", "because": "it says so", "source": "x"}
    return LayerPlan(prefix=prefix, **{**usual, **facts})


@pytest.mark.parametrize(
    ("names", "pattern"),
    [
        (["lm_head"], "lm_head"),
        (["a.0.b", "a.1.b", "a.2.b"], "a.{0-2}.b"),
        (["a.10.b", "a.2.b", "a.3.b", "a.7.b"], "a.{2-3,7,10}.b"),
        (["a.0.w1", "a.1.w1"], "a.{0-1}.w1"),
        (["a.3.e.0", "a.3.e.1"], "a.3.e.{0-1}"),
        (["a.0.e.0.w", "a.1.e.1.w"], "a.{0-1}.e.{0-1}.w"),
    ],
)
def test_numbers_become_ranges(names, pattern):
    assert collapse(names) == pattern


def test_patterns_of_mixed_names():
    assert collapse_all(["a.0.x", "b", "a.1.x", "a.1.y"]) == ["a.{0-1}.x", "b", "a.1.y"]


def test_layers_of_equal_facts_are_one_group_with_summed_bytes():
    layers = [
        layer(f"model.layers.{i}.up", bytes_stored=10, bytes_memory=5, n=2, k=3) for i in range(61)
    ]
    (group,) = group_layers(layers)
    assert (group.pattern, group.count) == ("model.layers.{0-60}.up", 61)
    assert (group.bytes_stored, group.bytes_memory) == (610, 305)


def test_one_layer_that_differs_is_a_group_of_its_own():
    layers = [layer(f"l.{i}.up", kernel="fast" if i else "slow") for i in range(4)]
    assert [(g.pattern, g.count) for g in group_layers(layers)] == [
        ("l.0.up", 1),
        ("l.{1-3}.up", 3),
    ]


def test_reasons_that_name_each_layer_are_one_group_with_stars():
    layers = [
        layer(
            f"model.layers.{i}.mlp.gate",
            because=f"model.layers.{i}.mlp.gate is listed",
            source=f"ignore[{i}] = 'model.layers.{i}.mlp.gate'",
        )
        for i in range(3)
    ]
    (group,) = group_layers(layers)
    assert group.because == "model.layers.*.mlp.gate is listed"
    assert group.source == "ignore[*] = 'model.layers.*.mlp.gate'"


def test_numbers_of_shapes_and_what_all_have_alike_are_told():
    layers = [
        layer(f"l.{i}.e.7.up", because=f"l.{i}.e.7.up.qweight is [8, 64], not [16, 64], by a[2]")
        for i in range(3)
    ]
    (group,) = group_layers(layers)
    assert group.because == "l.*.e.7.up.qweight is [8, 64], not [16, 64], by a[2]"


def test_layers_with_other_faults_are_other_groups():
    layers = [
        layer(f"l.{i}.up", because=f"l.{i}.up.qweight is [{8 * (i // 2)}, 64]") for i in range(4)
    ]
    assert [(g.pattern, g.because) for g in group_layers(layers)] == [
        ("l.{0-1}.up", "l.*.up.qweight is [0, 64]"),
        ("l.{2-3}.up", "l.*.up.qweight is [8, 64]"),
    ]


def test_the_order_is_embeddings_names_by_number_heads():
    layers = [
        layer("lm_head", kind="head"),
        layer("model.layers.10.x", n=1),
        layer("model.layers.2.x", n=2),
        layer("model.embed_tokens", kind="embedding"),
    ]
    assert [group.pattern for group in group_layers(layers)] == [
        "model.embed_tokens",
        "model.layers.2.x",
        "model.layers.10.x",
        "lm_head",
    ]
