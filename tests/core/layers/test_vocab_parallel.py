"""A divided vocabulary: every word has its row once, and what pads a rank's part never wins."""

from __future__ import annotations

import pytest
import torch

from quantdock.errors import ConfigError, LoadError
from quantdock.layers import ParallelGroup, ParallelLMHead, VocabParallelEmbedding
from quantdock.numerics import dtype_name
from quantdock.schemes import LayerFacts, StoredTensor
from toy_ranks import config_of, filled, ranks, stored, values, weight_of

# Methods that quantize at load leave the head alone.
STORED = ("none", "tensor", "static", "channel", "block", "mxfp8")


def embedding(words, group, weight):
    layer = VocabParallelEmbedding(words, weight.shape[1], group=group)
    layer.weight.weight_loader(layer.weight, weight)
    return layer


def head(kind, tensors, group):
    headers = {
        name: StoredTensor(dtype=dtype_name(tensor.dtype), shape=tuple(tensor.shape))
        for name, tensor in tensors.items()
    }
    facts = LayerFacts(prefix="lm_head", kind="head", stored=headers)
    config = config_of(kind)
    return filled(
        ParallelLMHead(101, 160, quant_config=config, facts=facts, group=group), [tensors]
    )


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_the_parts_of_an_embedding_sum_up_to_it(size):
    weight = values(101, 16)
    numbers = torch.arange(101).view(1, -1).repeat(2, 1)
    parts = [embedding(101, group, weight)(numbers) for group in ranks(size)]
    assert torch.equal(sum(parts), weight[numbers])


@pytest.mark.parametrize("kind", STORED)
@pytest.mark.parametrize("size", [2, 3, 4])
def test_logits_that_pad_a_rank_never_win(kind, size):
    """101 words: with 3 ranks the last has 33 and the others 34."""
    tensors = stored(kind, 101, 160)
    one = head(kind, tensors, ParallelGroup())
    heads = [head(kind, tensors, group) for group in ranks(size)]
    assert torch.equal(torch.cat([weight_of(part) for part in heads]), weight_of(one))
    x = -values(160).abs() * weight_of(one).sign().sum(0).sign()  # logits below 0 but for chance
    width = -(-101 // size)
    parts = [part(x.repeat(2, 1)) for part in heads]
    assert [part.shape for part in parts] == [(2, width)] * size
    joined = torch.cat(parts, dim=1)
    assert joined[:, 101:].isneginf().all() and joined.shape[1] == width * size
    torch.testing.assert_close(joined[:, :101], one(x.repeat(2, 1)))


def test_too_few_words_for_the_ranks_are_refused():
    with pytest.raises(ConfigError, match="9 rows leave some of 4 ranks empty") as caught:
        VocabParallelEmbedding(9, 4, group=ParallelGroup(rank=0, size=4))
    assert caught.value.tp_sizes == (1, 2, 3, 5, 9)


def test_a_part_of_an_embedding_is_not_taken_for_all_of_it():
    layer = VocabParallelEmbedding(8, 4, group=ParallelGroup(rank=0, size=2))
    with pytest.raises(LoadError, match=r"The embedding has shape \[4, 4\]"):
        layer.weight.weight_loader(layer.weight, torch.ones(4, 4))
