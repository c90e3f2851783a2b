"""Experts one after another, against each token by itself."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from quantdock.errors import FormatError
from quantdock.kernels.expert_loop import ExpertMatrices, run_experts

E, H, I = 5, 8, 6  # noqa: E741


class Plain:
    def apply(self, tensors: Mapping[str, Tensor], x: Tensor, bias: Tensor | None) -> Tensor:
        return F.linear(x, tensors["weight"], bias)


def gate(hidden: Tensor) -> Tensor:
    first, second = hidden.chunk(2, dim=-1)
    return F.silu(first) * second


@pytest.fixture
def matrices() -> tuple[ExpertMatrices, ExpertMatrices]:
    generator = torch.Generator().manual_seed(1)

    def make(n: int, k: int) -> ExpertMatrices:
        weight = torch.randn(E, n, k, generator=generator)
        bias = torch.randn(E, n, generator=generator)
        return ExpertMatrices(kernel=Plain(), tensors={"weight": weight}, bias=bias)

    return make(2 * I, H), make(H, I)


@pytest.mark.parametrize("num_tokens", [0, 1, 7])
def test_each_token_gets_its_experts_in_any_order(matrices, num_tokens):
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(num_tokens, H, generator=generator)
    ids = torch.rand(num_tokens, E, generator=generator).argsort(dim=1)[:, :2]
    weights = torch.rand(num_tokens, 2, generator=generator)
    result = run_experts(x, ids, weights, *matrices, gate, E)
    expected = torch.zeros(num_tokens, H)
    for token in range(num_tokens):
        for expert, weight in zip(ids[token].tolist(), weights[token], strict=True):
            hidden = gate(matrices[0].apply(expert, x[token : token + 1]))
            expected[token] += weight * matrices[1].apply(expert, hidden)[0]
    torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-4)


def test_an_expert_of_another_rank_adds_nothing(matrices):
    x = torch.randn(3, H)
    ids = torch.tensor([[0, E], [E, E], [1, 0]])
    weights = torch.ones(3, 2)
    result = run_experts(x, ids, weights, *matrices, gate, E)
    alone = run_experts(x[:1], ids[:1, :1], weights[:1, :1], *matrices, gate, E)
    torch.testing.assert_close(result[:1], alone)
    assert result[1].tolist() == [0.0] * H


def test_an_id_that_is_no_expert_is_refused(matrices):
    with pytest.raises(FormatError, match=r"sent to expert 9[\s\S]*experts 0 to 4"):
        run_experts(torch.randn(1, H), torch.tensor([[9]]), torch.ones(1, 1), *matrices, gate, E)
