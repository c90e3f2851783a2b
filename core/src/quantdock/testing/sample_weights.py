"""Weights of every scheme, made of normal values: what a kernel is given when it is checked."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from quantdock.schemes import Scheme

if TYPE_CHECKING:
    from torch import Tensor

    from quantdock.formats import QuantSpec
    from quantdock.numerics.canonical import CanonicalWeight, Segment

INPUT_SCALE, INPUT_ZERO = 0.02, 5
LEAST_MULTIPLIER, LARGEST_MULTIPLIER = 0.5, 2.0


def unequal_sample(values: Tensor, scheme: Scheme) -> CanonicalWeight:
    """Return the first half of the columns of ``values`` [N, 2K] in act-order, as a rank gets it.

    Its groups are of unequal size.
    """
    from quantdock.numerics.cut import cut_columns

    return cut_columns(sample_weight(values, scheme), 0, values.shape[1] // 2)


def sample_weight(values: Tensor, scheme: Scheme) -> CanonicalWeight:
    """Return ``values`` [N, K] quantized as ``scheme`` stores weights, with what inputs need.

    Columns in act-order are shuffled; their groups are of equal size, as GPTQ makes them.
    """
    import torch

    from quantdock.numerics.canonical import quantize_weight

    spec, activation, k = scheme.weight, scheme.activation, values.shape[1]
    weight = quantize_weight(values, replace(spec, act_order=False))
    if spec.act_order:
        weight = replace(weight, segments=tuple(_shuffled(s, spec) for s in weight.segments))
    has_zero = activation is not None and scheme.is_static and activation.zero
    multiplier = torch.linspace(LEAST_MULTIPLIER, LARGEST_MULTIPLIER, k)
    return replace(
        weight,
        input_scale=torch.tensor([INPUT_SCALE]) if scheme.is_static else None,
        input_zero=torch.tensor([INPUT_ZERO], dtype=torch.int32) if has_zero else None,
        input_multiplier=multiplier if scheme.input_multiplier else None,
    )


def _shuffled(segment: Segment, spec: QuantSpec) -> Segment:
    """Return ``segment``, whose groups are columns in a row, as one of ``spec`` in act-order."""
    import torch

    k = segment.codes.shape[1]
    order = torch.randperm(k, generator=torch.Generator().manual_seed(k))
    return replace(
        segment,
        spec=spec,
        codes=segment.codes[:, order],
        group_index=(order // (spec.cols or k)).to(torch.int32),
    )
