"""Experts one after another, against each token by itself."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from quantdock.errors import FormatError
from quantdock.kernels.expert_loop import ExpertLoop

E, H, I = 5, 8, 6  # noqa: E741


class Plain:
    def apply(self, tensors: Mapping[str, Tensor], x: Tensor, bias: Tensor | None) -> Tensor:
        return F.linear(x, tensors["weight"], bias)


def gate(hidden: Tensor) -> Tensor:
    first, second = hidden.chunk(2, dim=-1)
    return F.silu(first) * second


LOOP = ExpertLoop(w13=Plain(), w2=Plain(), gate=gate, num_experts=E)


@pytest.fixture
def tensors() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(1)
    shapes = {"w13_weight": (2 * I, H), "w13_bias": (2 * I,), "w2_weight": (H, I), "w2_bias": (H,)}
    return {name: torch.randn(E, *s, generator=generator) for name, s in shapes.items()}


def alone(tensors: dict[str, Tensor], expert: int, x: Tensor) -> Tensor:
    own = {name: tensor[expert] for name, tensor in tensors.items()}
    hidden = gate(F.linear(x, own["w13_weight"], own["w13_bias"]))
    return F.linear(hidden, own["w2_weight"], own["w2_bias"])


@pytest.mark.parametrize("num_tokens", [0, 1, 7])
@pytest.mark.parametrize("step", [LOOP.apply, LOOP.apply_partial])
def test_each_token_gets_its_experts_in_any_order(tensors, num_tokens, step):
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(num_tokens, H, generator=generator)
    ids = torch.rand(num_tokens, E, generator=generator).argsort(dim=1)[:, :2]
    weights = torch.rand(num_tokens, 2, generator=generator)
    result = step(tensors, x, weights, ids)
    expected = torch.zeros(num_tokens, H)
    for token in range(num_tokens):
        for expert, weight in zip(ids[token].tolist(), weights[token], strict=True):
            expected[token] += weight * alone(tensors, expert, x[token])
    torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-4)


def test_an_expert_of_another_rank_adds_nothing(tensors):
    x = torch.randn(3, H)
    ids = torch.tensor([[0, E], [E, E], [1, 0]])
    result = LOOP.apply(tensors, x, torch.ones(3, 2), ids)
    torch.testing.assert_close(result[0], alone(tensors, 0, x[0]))
    assert result[1].tolist() == [0.0] * H


def test_an_id_that_is_no_expert_is_refused(tensors):
    with pytest.raises(FormatError, match=r"sent to expert 9[\s\S]*experts 0 to 4"):
        LOOP.apply(tensors, torch.randn(1, H), torch.ones(1, 1), torch.tensor([[9]]))
