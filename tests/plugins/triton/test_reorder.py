"""Columns in another order and times factors, under Triton's interpreter."""

from __future__ import annotations

import pytest
import torch


@pytest.mark.parametrize("m, k", [(1, 96), (3, 1024 + 32)])
@pytest.mark.parametrize("has_order, has_factor", [(True, False), (False, True), (True, True)])
def test_columns_and_factors(interpreted, m, k, has_order, has_factor):
    module = interpreted("quantdock_triton.reorder")
    x = torch.randn(m, k + 8).to(torch.float16)[:, 3 : 3 + k]
    order = torch.randperm(k).to(torch.int32) if has_order else None
    factor = torch.rand(k) if has_factor else None
    expected = x if factor is None else (x * factor).to(x.dtype)
    expected = expected if order is None else expected.index_select(1, order)
    assert torch.equal(module.reorder(x, order, factor), expected)
