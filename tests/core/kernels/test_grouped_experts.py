"""Unquantized experts by torch's grouped product, beside the loop over experts."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F

from quantdock.kernels.expert_loop import ExpertLoop
from quantdock.kernels.grouped_experts import GroupedExperts

E, H, I = 5, 24, 16  # noqa: E741


class Plain:
    def apply(self, tensors, x, bias):
        return F.linear(x, tensors["weight"], bias)


def gate(hidden):
    first, second = hidden.chunk(2, dim=-1)
    return F.silu(first) * second


LOOP = ExpertLoop(w13=Plain(), w2=Plain(), gate=gate, num_experts=E)
GROUPED = GroupedExperts(gate=gate, num_experts=E)


def made(has_bias):
    shapes = {"w13_weight": (2 * I, H), "w2_weight": (H, I)}
    if has_bias:
        shapes |= {"w13_bias": (2 * I,), "w2_bias": (H,)}
    return {name: torch.randn(E, *shape).to(torch.bfloat16) for name, shape in shapes.items()}


@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("tokens", [1, 40])
@pytest.mark.parametrize("step", ["apply", "apply_partial"])
def test_equals_the_loop(step, tokens, has_bias):
    tensors = made(has_bias)
    x, weights = torch.randn(tokens, H).to(torch.bfloat16), torch.rand(tokens, 3)
    ids = torch.rand(tokens, E + 1).argsort(dim=1)[:, :3]  # E is another rank's
    found = getattr(GROUPED, step)(tensors, x, weights, ids)
    # The loop's result, for its partial sums are of f32 alone.
    expected = LOOP.apply(tensors, x, weights, ids).float()
    assert found.dtype == (x.dtype if step == "apply" else torch.float32)
    assert (found.float() - expected).norm() <= 0.02 * expected.norm()


def test_tokens_of_no_expert_here():
    x, weights = torch.randn(4, H).to(torch.bfloat16), torch.rand(4, 2)
    found = GROUPED.apply(made(True), x, weights, torch.full((4, 2), E))
    assert not found.any()


@pytest.fixture
def nan_where_nothing_is_written():
    torch.use_deterministic_algorithms(True)  # fills new memory with NaN
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.usefixtures("nan_where_nothing_is_written")
@pytest.mark.parametrize("tokens", [3, 60])
def test_gradients(tokens):
    """Of x, of routing weights and of what the layer has; pairs of other ranks give none."""
    ids = torch.rand(tokens, E + 1).argsort(dim=1)[:, :3]
    ids[0, 0] = E
    grads, tensors = [], made(True)
    drawn = torch.randn(tokens, H).to(torch.bfloat16), torch.rand(tokens, 3)
    for kernel in (LOOP, GROUPED):
        own = {name: tensor.clone().requires_grad_() for name, tensor in tensors.items()}
        x, weights = (tensor.clone().requires_grad_() for tensor in drawn)
        kernel.apply(own, x, weights, ids).float().square().sum().backward()
        grads.append([t.grad.float() for t in (x, weights, *own.values())])
    for one, other in zip(*grads, strict=True):
        assert torch.isfinite(other).all()
        assert (one - other).norm() <= 0.03 * one.norm()


def test_what_torch_multiplies():
    tensors = made(False)
    on = SimpleNamespace(type="some_accelerator")

    def x(**facts):
        usual = {"device": on, "dtype": torch.bfloat16, "numel": lambda: H}
        return SimpleNamespace(**(usual | facts))

    assert GROUPED.takes(tensors, x())
    assert not GROUPED.takes(tensors, x(device=SimpleNamespace(type="cpu")))
    assert not GROUPED.takes(tensors, x(dtype=torch.float16))
    assert not GROUPED.takes(tensors, x(numel=lambda: 0))
    odd = tensors | {"w2_weight": tensors["w2_weight"][..., :-1]}
    assert not GROUPED.takes(odd, x())
