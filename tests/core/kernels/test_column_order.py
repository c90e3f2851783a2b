"""Columns in act-order: sorted where groups are of equal size, by an index where they are not."""

from __future__ import annotations

import pytest
import torch

from integer_weights import assert_same, layer_of, make_integers
from quantdock.errors import FormatError
from quantdock.formats import parse_spec
from quantdock.kernels.column_order import have_equal_groups, sorted_columns
from quantdock.kernels.layout import from_grid, to_grid, to_sorted_grid
from quantdock.numerics import CanonicalWeight, cut_columns
from toy_gptq import in_act_order

SPEC = "uint4[1x64]:zero:act-order"


@pytest.mark.parametrize(
    ("index", "order"),
    [
        ([1, 0, 0, 1], [1, 2, 0, 3]),
        ([0, 0, 1, 1, 2], [0, 1, 2, 3, 4]),  # the last group is an edge
        ([1, 0, 1, 0, 2], [1, 3, 0, 2, 4]),
        ([0, 1, 1, 1], None),
        ([1, 0, 0], [1, 2, 0]),
        ([0, 1, 1], None),  # only the last group may be smaller
        ([0, 0, 0, 0], None),
    ],
)
def test_groups_of_two_columns_are_sorted_or_not(index: list[int], order: list[int] | None) -> None:
    found = sorted_columns(torch.tensor([index], dtype=torch.int32), 2)
    assert (None if found is None else found[0].tolist()) == order


def test_every_row_must_be_of_equal_groups() -> None:
    assert sorted_columns(torch.tensor([[1, 0, 0, 1], [0, 1, 1, 1]]), 2) is None


def test_a_cut_of_columns_leaves_unequal_groups() -> None:
    whole = in_act_order(128, 256, 64)
    half = cut_columns(whole, 0, 128)
    assert have_equal_groups(whole) is True
    assert have_equal_groups(half) is False
    assert have_equal_groups(make_integers("int4[1x32]", [16], 64)) is None
    grid = to_grid(half, half.segments[0].spec)
    assert grid.order is None and grid.group is not None
    with pytest.raises(FormatError, match="has groups of unequal size") as caught:
        to_sorted_grid(half, half.segments[0].spec)
    assert "QUANTDOCK_KERNEL=reference" in caught.value.todo


@pytest.mark.parametrize("shared", [True, False])
def test_an_index_that_could_be_sorted_can_be_kept(shared: bool) -> None:
    """So experts lie alike of which only some have groups of equal size."""
    weight = make_integers("int4[1x32]:act-order", [32, 16], 96, shared=shared)
    grid = to_grid(weight, parse_spec("int4[1x32]:act-order"), sorts=False)
    assert grid.order is None and grid.group is not None
    assert grid.group.shape == (1 if shared else 2, 96)
    assert_same(weight, CanonicalWeight(segments=from_grid(grid)))


def test_the_reference_runs_either() -> None:
    half = cut_columns(in_act_order(128, 256, 64), 0, 128)
    kernel, tensors = layer_of(SPEC, half)
    x = torch.randn(3, 128, generator=torch.Generator().manual_seed(0))
    expected = x.double() @ half.dequantize().double().T
    assert torch.allclose(kernel.apply(tensors, x, None).double(), expected, rtol=1e-5, atol=1e-4)
    assert_same(half, kernel.restore(tensors))
