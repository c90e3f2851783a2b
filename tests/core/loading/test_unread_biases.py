"""Biases that no layer takes: zeros are accounted for, others are an error."""

from __future__ import annotations

import pytest
import torch

from quantdock.errors import LoadError
from toy_gptq import GPTQ, integer_llama
from toy_llama import DOWN, LINEARS, load, logits, write


def test_zeros_that_autogptq_stores_change_nothing(tmp_path):
    tensors = integer_llama()
    plain = logits(load(write(tmp_path / "plain", tensors, GPTQ)))
    for name in LINEARS:
        n = tensors[f"{name}.scales"].shape[1]
        tensors[f"{name}.bias"] = torch.zeros(n, dtype=torch.float16)
    model = load(write(tmp_path / "zeros", tensors, GPTQ))
    assert torch.equal(logits(model), plain)
    assert model.quantdock_plan.unused == ()


def test_a_bias_that_counts_is_an_error(tmp_path):
    tensors = integer_llama()
    tensors[f"{DOWN}.bias"] = torch.zeros(256, dtype=torch.float16)
    tensors[f"{DOWN}.bias"][3] = 0.5
    with pytest.raises(LoadError) as caught:
        load(write(tmp_path, tensors, GPTQ))
    assert caught.value.names == (f"{DOWN}.bias",)
    assert f"  1 that are not zero: {DOWN}.bias\n" in str(caught.value)
