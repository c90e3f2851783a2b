"""Divided input features: parts of the weight, sums of partial products, one bias."""

from __future__ import annotations

import pytest
import torch

from quantdock.layers import ParallelGroup, ReplicatedLinear, RowParallelLinear
from quantdock.numerics import dequantize, quantize
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
# Activations that are quantized alike however the columns are divided.
SAME_INPUT = ("none", "static")


def parts_of(kind, size, k, tensors, bias=False, dtype=None, **options):
    return [
        filled(
            RowParallelLinear(
                k,
                48,
                bias,
                quant_config=config_of(kind),
                group=group,
                params_dtype=dtype,
                **options,
            ),
            [tensors],
        )
        for group in ranks(size)
    ]


def whole(kind, k, tensors, bias=False, dtype=None):
    layer = ReplicatedLinear(k, 48, bias, quant_config=config_of(kind), params_dtype=dtype)
    return filled(layer, [tensors])


def quantized_input(layer, x):
    """Return what the layer's scheme makes of its input."""
    spec = layer.quant_method.problem.scheme.activation
    made = quantize(x, spec)
    return dequantize(made.codes, made.scale, spec)


@pytest.mark.parametrize(("size", "k"), SIZES)
@pytest.mark.parametrize("kind", KINDS)
def test_columns_of_all_ranks_are_those_of_one(kind, size, k):
    tensors = stored(kind, 48, k)
    one, parts = whole(kind, k, tensors), parts_of(kind, size, k, tensors)
    assert torch.equal(torch.cat([weight_of(part) for part in parts], dim=1), weight_of(one))
    assert [part.in_features for part in parts] == [k // size] * size


@pytest.mark.parametrize(("size", "k"), SIZES)
@pytest.mark.parametrize("kind", KINDS)
def test_the_parts_sum_up_to_the_whole(kind, size, k):
    tensors = stored(kind, 48, k)
    one, parts = whole(kind, k, tensors), parts_of(kind, size, k, tensors)
    x = values(5, k, seed=7)
    found = sum(part(piece) for part, piece in zip(parts, x.chunk(size, dim=1), strict=True))
    assert relative(found, one(x)) < (1e-6 if kind in SAME_INPUT or size == 1 else 0.05)
    if kind in SAME_INPUT:
        return
    pieces = x.chunk(size, dim=1)
    exact = sum(
        quantized_input(part, piece).double() @ weight_of(part).double().T
        for part, piece in zip(parts, pieces, strict=True)
    )
    assert relative(found, exact) < 1e-6


@pytest.mark.parametrize(("kind", "k"), [("block", 512), ("online block", 512), ("mxfp8", 192)])
def test_groups_that_are_not_cut_give_what_one_rank_gives(kind, k):
    """Scales of 128 or 32 columns lie within a rank: only the order of the sum differs."""
    tensors = stored(kind, 48, k)
    x = values(5, k, seed=7)
    expected = whole(kind, k, tensors)(x)
    for size in (2, 3) if k == 192 else (2, 4):
        parts = parts_of(kind, size, k, tensors)
        found = sum(part(piece) for part, piece in zip(parts, x.chunk(size, dim=1), strict=True))
        assert relative(found, expected) < 1e-6


@pytest.mark.parametrize("kind", QUANTIZED)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_the_bias_is_added_once_and_the_sum_rounded_once(kind, dtype):
    zeros = {n: t for n, t in stored(kind, 48, 192).items()}
    zeros["weight"] = torch.zeros_like(zeros["weight"].float()).to(zeros["weight"].dtype)
    bias = torch.arange(48.0).to(dtype) + 100
    x = values(3, 192).to(dtype)
    for size in (1, 2, 4):
        parts = parts_of(kind, size, 192, zeros | {"bias": bias}, bias=True, dtype=dtype)
        found = [part(piece) for part, piece in zip(parts, x.chunk(size, dim=1), strict=True)]
        assert sum(found).tolist() == [bias.tolist()] * 3
        assert size == 1 or {y.dtype for y in found} == {torch.float32}


def test_a_layer_that_gets_the_whole_input_takes_its_part():
    tensors = stored("block", 48, 192)
    x = values(2, 3, 192)
    given = parts_of("block", 2, 192, tensors)
    taken = parts_of("block", 2, 192, tensors, input_is_parallel=False)
    for first, second, piece in zip(given, taken, x.chunk(2, dim=-1), strict=True):
        assert torch.equal(first(piece), second(x))
    assert taken[0].in_features == 192


def test_a_cut_inside_a_block_narrows_its_tiles_and_the_groups_of_its_input():
    group = ParallelGroup(rank=1, size=2)
    layer = RowParallelLinear(704, 48, False, quant_config=config_of("block"), group=group)
    scheme = layer.quant_method.selection.scheme
    assert str(scheme) == "fp8_e4m3[128x32] x fp8_e4m3[1x32]:dynamic"
    first = RowParallelLinear(
        704, 48, False, quant_config=config_of("block"), group=ParallelGroup(rank=0, size=2)
    )
    assert str(first.quant_method.selection.scheme) == "fp8_e4m3[128x128] x fp8_e4m3[1x128]:dynamic"


@pytest.mark.parametrize("kind", ["block", "online block", "mxfp8", "tensor", "channel"])
def test_aligned_parts_keep_only_what_they_need_and_have_the_same_bits(kind):
    tensors = stored(kind, 160, 512)
    group = ParallelGroup(rank=1, size=2)
    fast, slow = (
        RowParallelLinear(512, 160, False, quant_config=config_of(kind), group=group)
        for _ in range(2)
    )
    slow.quant_method.pending.parts = ({},)
    assert fast.quant_method.pending.parts[0]["weight"] == (slice(0, 160), slice(256, 512))
    filled(fast, [tensors]), filled(slow, [tensors])
    for name, parameter in fast.named_parameters():
        other = slow.get_parameter(name)
        assert torch.equal(parameter.view(torch.uint8), other.view(torch.uint8)), name


def test_a_scale_over_all_columns_is_made_of_all():
    """Quantized at load per row: the largest value of row 0 lies on the other rank."""
    weight = torch.ones(4, 64)
    weight[0, 40] = 100.0
    group = ParallelGroup(rank=0, size=2)
    layer = RowParallelLinear(64, 4, False, quant_config=config_of("online channel"), group=group)
    filled(layer, [{"weight": weight}])
    assert layer.weight_scale[:2].flatten().tolist() == pytest.approx([100 / 448, 1 / 448])
