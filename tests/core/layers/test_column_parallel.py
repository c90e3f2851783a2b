"""Divided output features: every part is that of the whole, bit for bit, at every size."""

from __future__ import annotations

import pytest
import torch

from quantdock.errors import ConfigError, LoadError
from quantdock.layers import (
    ColumnParallelLinear,
    MergedColumnParallelLinear,
    ParallelGroup,
    ReplicatedLinear,
)
from toy_ranks import (
    KINDS,
    QUANTIZED,
    config_of,
    filled,
    ranks,
    relative,
    stored,
    values,
    weight_of,
)

SIZES = [(1, 192), (2, 192), (3, 192), (4, 320), (2, 704), (4, 704), (4, 512)]


def whole(kind, sizes, k, shards, bias=False):
    layer = ReplicatedLinear(k, sizes, bias, quant_config=config_of(kind))
    return filled(layer, shards)


@pytest.mark.parametrize(("size", "n"), SIZES)
@pytest.mark.parametrize("kind", KINDS)
def test_rows_of_all_ranks_are_those_of_one(kind, size, n):
    tensors = stored(kind, n, 200) | {"bias": values(n, seed=5)}
    one = whole(kind, n, 200, [tensors], bias=True)
    parts = [
        filled(ColumnParallelLinear(200, n, quant_config=config_of(kind), group=group), [tensors])
        for group in ranks(size)
    ]
    assert torch.equal(torch.cat([weight_of(part) for part in parts]), weight_of(one))
    x = values(3, 200, seed=9)
    result = torch.cat([part(x) for part in parts], dim=-1)
    assert relative(result, one(x)) < 1e-6
    assert [part.out_features for part in parts] == [n // size] * size


@pytest.mark.parametrize("sizes", [(256, 192), (1536, 576), (96, 96)])
@pytest.mark.parametrize("kind", QUANTIZED)
def test_each_part_of_a_merged_layer_is_divided(kind, sizes):
    shards = [stored(kind, n, 160, seed=n) for n in sizes]
    one = whole(kind, sizes, 160, shards)
    expected = weight_of(one).split(sizes)
    config = config_of(kind)
    for size in (1, 2, 3, 4):
        if any(n % size for n in sizes):
            continue
        parts = [
            filled(
                MergedColumnParallelLinear(160, sizes, False, quant_config=config, group=group),
                shards,
            )
            for group in ranks(size)
        ]
        split = [weight_of(part).split([n // size for n in sizes]) for part in parts]
        for index, weight in enumerate(expected):
            found = torch.cat([pieces[index] for pieces in split])
            assert torch.equal(found, weight), (size, index)


def test_a_part_that_begins_in_a_block_keeps_the_blocks_scale():
    """Rows 96 to 191 of 192: 32 rows of the first block, then the second."""
    tensors = {
        "weight": torch.ones(192, 256).to(torch.float8_e4m3fn),
        "weight_scale_inv": torch.tensor([[1.0, 2.0], [3.0, 4.0]]),
    }
    group = ParallelGroup(rank=1, size=2)
    layer = ColumnParallelLinear(256, 192, False, quant_config=config_of("block"), group=group)
    filled(layer, [tensors])
    assert weight_of(layer)[:, 0].tolist() == [1.0] * 32 + [3.0] * 64
    assert layer.quant_method.problem.shards == (32, 64)
    assert str(layer.quant_method.problem.scheme.weight) == "fp8_e4m3[128x128]"


@pytest.mark.parametrize("kind", ["online block", "online channel", "block", "channel", "tensor"])
def test_aligned_parts_keep_only_what_they_need_and_have_the_same_bits(kind):
    tensors = stored(kind, 512, 256)
    group = ParallelGroup(rank=1, size=2)
    fast, slow = (
        ColumnParallelLinear(256, 512, False, quant_config=config_of(kind), group=group)
        for _ in range(2)
    )
    slow.quant_method.pending.parts = ({},)
    assert fast.quant_method.pending.parts[0]["weight"] == (slice(256, 512), slice(0, 256))
    filled(fast, [tensors]), filled(slow, [tensors])
    for name, parameter in fast.named_parameters():
        other = slow.get_parameter(name)
        assert torch.equal(parameter.view(torch.uint8), other.view(torch.uint8)), name


def test_one_scale_for_all_is_made_of_all():
    """Quantized at load per tensor: the largest value lies on the other rank."""
    weight = torch.ones(64, 32)
    weight[40, 3] = 100.0
    group = ParallelGroup(rank=0, size=2)
    layer = ColumnParallelLinear(
        32, 64, False, quant_config=config_of("online tensor"), group=group
    )
    assert layer.quant_method.pending.parts == ({},)
    filled(layer, [{"weight": weight}])
    assert layer.weight_scale.item() == pytest.approx(100 / 448)


def test_a_division_that_cannot_be_names_those_that_can():
    with pytest.raises(ConfigError) as caught:
        ColumnParallelLinear(64, 704, prefix="model.up_proj", group=ParallelGroup(rank=0, size=3))
    assert str(caught.value) == (
        "model.up_proj cannot be divided among 3 ranks.\n"
        "  model.up_proj: 704 rows cannot be divided among 3 ranks\n"
        "Numbers of ranks that work: 1, 2, 4, 8, 11, 16, 22, 32, 44, 64."
    )
    assert caught.value.tp_sizes[:4] == (1, 2, 4, 8)


def test_a_tensor_of_the_parts_size_is_not_taken_for_the_whole():
    group = ParallelGroup(rank=0, size=2)
    plain = ColumnParallelLinear(16, 32, group=group)
    with pytest.raises(LoadError, match=r"weight \(shard 0\) is float32 \[16, 16\]"):
        plain.weight.weight_loader(plain.weight, torch.ones(16, 16))
    with pytest.raises(LoadError, match=r"bias \(shard 0\) has shape \[16\]"):
        plain.bias.weight_loader(plain.bias, torch.ones(16))
    coded = ColumnParallelLinear(16, 32, False, quant_config=config_of("channel"), group=group)
    with pytest.raises(LoadError, match=r"not \[32, 16\]"):
        filled(coded, [stored("channel", 16, 16)])
