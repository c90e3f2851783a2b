"""The weights that kernels are checked with: every feature of a scheme is really in them."""

from __future__ import annotations

import pytest
import torch

from quantdock.numerics import quantize_weight
from quantdock.schemes import parse_scheme
from quantdock.testing.sample_schemes import SAMPLES
from quantdock.testing.sample_weights import sample_weight, unequal_sample

VALUES = torch.randn(6, 160, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("scheme", SAMPLES, ids=str)
def test_every_sample_has_what_its_scheme_says(scheme):
    weight = sample_weight(VALUES, scheme)
    (segment,) = weight.segments
    activation = scheme.activation
    has_zero = activation is not None and activation.zero and not activation.dynamic
    assert segment.spec == scheme.weight
    assert (weight.input_scale is not None) is scheme.is_static
    assert (weight.input_zero is not None) is has_zero
    assert (weight.input_multiplier is not None) is scheme.input_multiplier
    if segment.zero is not None:
        assert segment.zero.unique().numel() > 1
    if segment.group_index is not None:
        assert bool((segment.group_index.diff() < 0).any())


def test_columns_in_act_order_keep_their_values_and_groups():
    scheme = parse_scheme("uint4[1x32]:zero:act-order")
    plain = quantize_weight(VALUES, parse_scheme("uint4[1x32]:zero").weight).dequantize()
    weight = sample_weight(VALUES, scheme)
    index = weight.segments[0].group_index
    assert torch.bincount(index).tolist() == [32] * 5
    assert torch.equal(weight.dequantize().sort(dim=1)[0], plain.sort(dim=1)[0])


def test_a_rank_gets_unequal_groups_of_the_same_values():
    scheme = parse_scheme("uint4[1x32]:zero:act-order")
    half, whole = unequal_sample(VALUES, scheme), sample_weight(VALUES, scheme)
    assert torch.equal(half.dequantize(), whole.dequantize()[:, : VALUES.shape[1] // 2])
    assert torch.bincount(half.segments[0].group_index).unique().numel() > 1


def test_samples_have_every_feature():
    texts = [str(scheme) for scheme in SAMPLES]
    assert len(texts) == len(set(texts))
    for feature in ("uint1[", "int2[", "uint7[", ":act-order", ":zero x", "[*x*]:zero", "+ input"):
        assert any(feature in text for text in texts), feature
