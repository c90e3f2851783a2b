"""Static scales: their shapes, their numbers, and what can be none."""

from __future__ import annotations

import pytest
import torch

from quantdock.errors import FormatError
from quantdock.kv_cache import KVScale


@pytest.mark.parametrize("shape", [(), (1,), (1, 1, 1, 1)])
def test_one_scale_is_a_number_of_any_rank(shape):
    scale = KVScale.of(torch.full(shape, 0.02))
    assert scale.tensor.shape == () and scale.tensor.dtype == torch.float32
    assert scale.value == torch.tensor(0.02).item(), "the f32 number, not the decimal one"
    assert (scale.granularity, str(scale)) == ("tensor", "0.02")


@pytest.mark.parametrize("shape", [(3,), (3, 1), (1, 3, 1, 1)])
def test_one_scale_a_head_has_no_single_number(shape):
    scale = KVScale.of(torch.tensor([0.5, 0.25, 2.0]).view(shape).to(torch.bfloat16))
    assert scale.tensor.tolist() == [0.5, 0.25, 2.0]
    assert scale.tensor.dtype == torch.float32
    assert (scale.granularity, scale.value) == ("head", None)
    assert str(scale) == "0.25 to 2 (3 heads)"


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf")])
def test_what_is_no_positive_number_is_refused(value):
    with pytest.raises(FormatError, match=r"A KV cache scale is \[1\.0, "):
        KVScale.of(torch.tensor([1.0, value]))
