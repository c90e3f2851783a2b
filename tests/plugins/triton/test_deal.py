"""Columns dealt out in two, under Triton's interpreter and compiled."""

from __future__ import annotations

import pytest
import torch


@pytest.mark.parametrize("m, k", [(1, 128), (3, 384), (2, 2048 + 128)])
def test_even_columns_of_a_block_come_before_the_odd_ones(interpreted, m, k):
    module = interpreted("quantdock_triton.deal")
    x = torch.randn(m, k + 8).to(torch.bfloat16)[:, 3 : 3 + k]
    found = module.deal(x, 64)
    assert torch.equal(found, module.order(x, 64))
    assert torch.equal(found[:, :64], x[:, 0:128:2]) and torch.equal(
        found[:, 64:128], x[:, 1:128:2]
    )
