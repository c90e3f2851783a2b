"""The order of columns: act-order's groups as a permutation of columns, and where that cannot be.

Groups of equal size become tiles once columns are sorted by group; only x is reordered then. A cut
of K, or a file, may leave groups of unequal size: each column keeps the index of its group.

>>> import torch
>>> index = torch.tensor([[1, 0, 1, 0]], dtype=torch.int32)
>>> sorted_columns(index, 2), sorted_columns(index[:, :3], 2)
(tensor([[1, 3, 0, 2]], dtype=torch.int32), None)
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from quantdock.formats import QuantSpec
from quantdock.numerics import CanonicalWeight, Segment


def have_equal_groups(weight: CanonicalWeight) -> bool | None:
    """Return whether groups in act-order are all as large as the spec says; None: no act-order."""
    indices = [s.group_index for s in weight.segments if s.group_index is not None]
    if not indices:
        return None
    return sorted_columns(torch.stack(indices), _cols(weight.segments[0].spec)) is not None


def columns_of(
    segments: Sequence[Segment], spec: QuantSpec, *, sorts: bool
) -> tuple[Tensor | None, Tensor | None]:
    """Return the order and the groups of columns, of which act-order needs one.

    Args:
        sorts: prefer the order, where there is one.
    """
    if not spec.act_order:
        return None, None
    index = torch.stack([s.group_index for s in segments if s.group_index is not None])
    if bool((index == index[0]).all()):
        index = index[:1]
    order = sorted_columns(index, _cols(spec)) if sorts else None
    return order, index.to(torch.int32) if order is None else None


def sorted_columns(index: Tensor, cols: int) -> Tensor | None:
    """Return the columns by group, or None where groups are not of ``cols`` columns each.

    Shapes:
        index: int [rows, K], the group of each column. Returns int32 [rows, K]. The last group may
        be smaller, as an edge tile is.
    """
    order = index.argsort(dim=1, stable=True)
    usual = torch.arange(index.shape[1], device=index.device) // cols
    return order.to(torch.int32) if bool((index.gather(1, order) == usual).all()) else None


def unsorted_index(order: Tensor, spec: QuantSpec) -> tuple[Tensor, Tensor]:
    """Return, int32 [K], each column's group, and its place in ``order`` [K]."""
    inverse = order.argsort()
    return (inverse // _cols(spec)).to(torch.int32), inverse


def _cols(spec: QuantSpec) -> int:
    assert spec.cols is not None, "QuantSpec refuses act-order without groups"
    return spec.cols
