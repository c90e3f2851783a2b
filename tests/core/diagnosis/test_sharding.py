"""Which layers can be divided among ranks, from sizes, heads and tiles alone."""

from __future__ import annotations

import pytest

from quantdock.diagnosis.sharding import Heads, read_way


@pytest.mark.parametrize(
    ("prefix", "stated", "way"),
    [
        ("layers.0.mlp.down_proj", None, "columns"),
        ("layers.0.mlp.up_proj", None, "rows"),
        ("layers.0.mlp.up_proj", "rowwise", "columns"),
        ("lm_head", "colwise_gather_output", "rows"),
        ("layers.0.mlp.router", "replicate", "whole"),
    ],
)
def test_the_authors_word_comes_before_the_name(prefix, stated, way):
    assert read_way(prefix, stated) == way


def test_heads_are_divided_whole_and_shared_where_they_are_few():
    heads = Heads.read({"text_config": {"num_attention_heads": 8, "num_key_value_heads": 2}})
    assert (heads.queries, heads.keys) == (8, 2)
    keys = heads.division("layers.0.attn.k_proj", 128, "rows")
    assert (keys.heads, keys.is_shared) == (2, True)
    assert keys.why_not(8) == "" and len(keys.part(0, 8)) == 64
    assert keys.why_not(3) == "neither of 2 heads and 3 ranks divides the other"
    queries = heads.division("layers.0.attn.q_proj", 512, "rows")
    assert queries.why_not(3) == "8 heads cannot be divided among 3 ranks"
    assert queries.why_not(16) == "8 heads cannot be divided among 16 ranks"
    assert heads.division("layers.0.attn.o_proj", 512, "columns").heads == 8
    assert heads.division("layers.0.mlp.up_proj", 512, "rows").heads is None


def test_sizes_that_are_no_heads_are_divided_as_they_are():
    assert Heads.read({}) == Heads()
    assert Heads().division("q_proj", 512, "rows").heads is None
    odd = Heads(queries=7, keys=7).division("q_proj", 512, "rows")
    assert (odd.heads, odd.why_not(4)) == (None, "")
    assert Heads.read({"num_attention_heads": 4}) == Heads(queries=4, keys=4)
