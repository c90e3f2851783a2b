"""Rows of tokens in the order of pairs, under Triton's interpreter."""

from __future__ import annotations

import pytest
import torch


@pytest.mark.parametrize("k", [24, 1056])
@pytest.mark.parametrize("is_view", [False, True])
def test_each_pair_has_the_row_of_its_token(interpreted, k, is_view):
    route, gather = (interpreted(f"quantdock_triton.{name}") for name in ("route", "gather"))
    ids = torch.tensor([[3, 1], [4, 0], [0, 2], [9, 1]])  # 9 is another rank's
    routing = route.route(ids, 5, 16)
    x = torch.randn(4, k + 8)[:, :k] if is_view else torch.randn(4, k)
    found, count = gather.rows_of_pairs(x, routing), int(routing.count)
    assert found.shape == (8, k) and found.is_contiguous() and count == 7
    assert torch.equal(found[:count], x[routing.order[:count] // 2])
