"""Heads of queries are divided; heads of keys and values are divided or shared."""

from __future__ import annotations

import pytest
import torch

from quantdock.errors import ConfigError, LoadError
from quantdock.layers import ParallelGroup, QKVParallelLinear, ReplicatedLinear
from toy_ranks import QUANTIZED, config_of, filled, ranks, relative, stored, values, weight_of

HEAD = 48  # rows; heads begin and end inside of blocks of 128


def shards(kind, heads, kv_heads):
    return [stored(kind, n * HEAD, 160, seed=n + 1) for n in (heads, kv_heads, kv_heads)]


@pytest.mark.parametrize(
    ("heads", "kv_heads", "size"), [(4, 4, 2), (4, 2, 2), (4, 2, 4), (6, 3, 3), (4, 1, 4)]
)
@pytest.mark.parametrize("kind", QUANTIZED)
def test_a_rank_has_its_heads_and_the_keys_they_look_at(kind, heads, kv_heads, size):
    stored_shards = shards(kind, heads, kv_heads)
    sizes = [heads * HEAD, kv_heads * HEAD, kv_heads * HEAD]
    one = filled(ReplicatedLinear(160, sizes, False, quant_config=config_of(kind)), stored_shards)
    queries, keys, vals = weight_of(one).split(sizes)
    expected_y = one(values(2, 160)).split(sizes, dim=1)
    for group in ranks(size):
        layer = QKVParallelLinear(
            160, HEAD, heads, kv_heads, False, quant_config=config_of(kind), group=group
        )
        filled(layer, stored_shards)
        own = range(group.rank * heads // size, (group.rank + 1) * heads // size)
        looked_at = sorted({head * kv_heads // heads for head in own})
        rows = [_rows(own), _rows(looked_at), _rows(looked_at)]
        parts = zip((queries, keys, vals), rows, strict=True)
        assert torch.equal(weight_of(layer), torch.cat([part[kept] for part, kept in parts]))
        kept = torch.cat([y[:, r] for y, r in zip(expected_y, rows, strict=True)], dim=1)
        assert relative(layer(values(2, 160)), kept) < 1e-6
        assert (layer.num_heads, layer.num_kv_heads) == (len(own), len(looked_at))


def _rows(heads):
    return torch.cat([torch.arange(head * HEAD, (head + 1) * HEAD) for head in heads])


def test_heads_that_do_not_divide_are_refused_with_those_that_do():
    with pytest.raises(ConfigError) as caught:
        QKVParallelLinear(576, 64, 9, 3, prefix="qkv", group=ParallelGroup(rank=0, size=2))
    assert str(caught.value) == (
        "qkv cannot be divided among 2 ranks.\n"
        "  qkv (queries): 9 heads cannot be divided among 2 ranks\n"
        "  qkv (keys): neither of 3 heads and 2 ranks divides the other\n"
        "  qkv (values): neither of 3 heads and 2 ranks divides the other\n"
        "Numbers of ranks that work: 1, 3, 9."
    )


@pytest.mark.parametrize("config", [None, config_of(QUANTIZED[0])])
def test_shards_have_letters_too(config):
    """vLLM and SGLang write "q", "k" and "v" where they load."""
    layers = [QKVParallelLinear(32, 8, 4, 2, quant_config=config) for _ in range(2)]
    for letter, number, rows in (("q", 0, 32), ("k", 1, 16), ("v", 2, 16)):
        weight, bias = values(rows, 32), values(1, rows)[0]
        for layer, shard in zip(layers, (letter, number), strict=True):
            if config is None:
                layer.weight.weight_loader(layer.weight, weight, shard)
            layer.bias.weight_loader(layer.bias, bias, shard)
    assert torch.equal(layers[0].bias, layers[1].bias)
    with pytest.raises(LoadError, match="was loaded for shard 'o'"):
        layers[0].weight.weight_loader(layers[0].weight, values(16, 32), "o")
    if config is None:
        assert torch.equal(layers[0].weight, layers[1].weight)
