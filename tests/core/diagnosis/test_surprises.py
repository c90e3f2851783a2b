"""Layers whose decision surprises, as pure functions of plans."""

from __future__ import annotations

from quantdock.diagnosis.surprises import lonely_plain, odd_quantized, split_shards
from quantdock.plan import LayerPlan


def layer(prefix: str, decision: str = "quantized", kind: str = "linear", **facts) -> LayerPlan:
    usual = {"because": "listed", "source": "ignore[0]"}
    return LayerPlan(prefix=prefix, kind=kind, decision=decision, **{**usual, **facts})


def test_most_must_be_quantized_for_a_plain_one_to_surprise():
    def of(*plain: int) -> list[LayerPlan]:
        words = ("unquantized" if i in plain else "quantized" for i in range(4))
        return [layer(f"layers.{i}.up_proj", word) for i, word in enumerate(words)]

    assert list(lonely_plain(of(2))) == [
        ("plain (listed, ignore[0]), and 3 of 4 layers.*.up_proj are not", ["layers.2.up_proj"])
    ]
    assert list(lonely_plain(of(0, 1))) == []
    assert list(lonely_plain(of())) == []


def test_shards_of_one_layer_are_compared():
    parts = [layer("m.0.attn.q_proj"), layer("m.0.attn.k_proj", "unquantized")]
    assert list(split_shards(parts)) == [
        ("q_proj is quantized and k_proj is not, in one attn", ["m.0.attn"])
    ]
    assert list(split_shards([*parts[:1], layer("m.0.attn.v_proj")])) == []
    assert list(split_shards([parts[0]])) == [], "a part that is absent has no vote"
    refused = layer("m.0.attn.k_proj", "error")
    assert list(split_shards([parts[0], refused])) == [], "it is reported elsewhere"


def test_heads_embeddings_and_routers_should_be_plain():
    layers = [
        layer("lm_head", kind="head"),
        layer("embed", kind="embedding"),
        layer("layers.0.mlp.gate"),
        layer("layers.0.mlp.gate_proj"),
        layer("layers.1.mlp.gate", "unquantized"),
    ]
    found = {tuple(names): text for text, names in odd_quantized(layers)}
    assert set(found) == {("lm_head",), ("embed",), ("layers.0.mlp.gate",)}
    assert "rounding changes which experts run" in found["layers.0.mlp.gate",]
