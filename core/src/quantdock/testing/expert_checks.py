"""Checks of a kernel that runs experts whole: against each token's experts by themselves."""

from __future__ import annotations

from pkgutil import resolve_name
from typing import TYPE_CHECKING

from quantdock.kernel import Kernel
from quantdock.platform import Platform
from quantdock.problem import ExpertProblem, Problem
from quantdock.schemes import Scheme
from quantdock.testing.sample_weights import sample_weight

if TYPE_CHECKING:
    from torch import Tensor

    from quantdock.numerics.canonical import CanonicalWeight

NUM_EXPERTS, TOP_K, LEAST_I, LEAST_H = 4, 2, 80, 160
T_VALUES = (1, 33)
# Where a whole tensor would have one computed scale, a kernel may give each token one of its own,
# so that codes of three bits of fraction are other ones.
OTHER_SCALES = 2.0**-4


def check_expert_kernel(kernel: Kernel, scheme: Scheme, platform: Platform, dtype: str) -> None:
    """Assert that ``kernel`` computes what ``scheme`` means of w13 and w2, within its tolerance.

    One function and one order of w13 of each that it takes; ids of other ranks add nothing.
    """
    import torch

    from quantdock.numerics import torch_dtype

    problem = _problem(kernel, scheme, dtype)
    experts = problem.experts
    assert experts is not None and experts.intermediate and problem.n and problem.k
    runner = resolve_name(kernel.target)(problem)
    random = torch.Generator().manual_seed(problem.n)
    sizes = ((problem.n, problem.k), (problem.k, experts.intermediate))
    made = []
    for _ in range(NUM_EXPERTS):
        values = (torch.randn(n, k, generator=random) / k**0.5 for n, k in sizes)
        made.append(tuple(sample_weight(each, scheme) for each in values))
    prepared = [runner.prepare(w13, w2) for w13, w2 in made]
    for pair, tensors in zip(made, prepared, strict=True):
        _check_restored(kernel, pair, runner.restore(tensors))
    stacked = {
        name: torch.stack([one[name] for one in prepared]).to(platform.device)
        for name in prepared[0]
    }
    for tokens in T_VALUES:
        x = torch.randn(tokens, problem.k, generator=random).to(torch_dtype(dtype))
        weights = torch.rand(tokens, TOP_K, generator=random)
        ids = torch.rand(tokens, NUM_EXPERTS + 1, generator=random).argsort(dim=1)[:, :TOP_K]
        given = (tensor.to(platform.device) for tensor in (x, weights, ids))
        found = runner.apply(stacked, *given).cpu()
        expected = _expected(experts, scheme, made, x, weights, ids)
        error, allowed = float((found.float() - expected).norm()), float(expected.norm())
        allowed *= _tolerance(kernel, scheme)
        assert found.dtype == x.dtype, f"{kernel.name}: {x.dtype} in, {found.dtype} out"
        assert error <= allowed, (
            f"{kernel.name} is off by {error:.2e} where {allowed:.2e} is "
            f"promised: {scheme}, {tokens} tokens, {problem.shape}, {dtype}"
        )


def _tolerance(kernel: Kernel, scheme: Scheme) -> float:
    activation = scheme.activation
    if activation is None or not activation.dynamic or activation.granularity != "tensor":
        return kernel.tolerance
    return max(kernel.tolerance, OTHER_SCALES)


def _problem(kernel: Kernel, scheme: Scheme, dtype: str) -> Problem:
    taken = kernel.experts
    assert taken is not None, f"{kernel.name} runs experts, and does not say which"
    order = sorted(taken.orders)[0]
    multiple = max(kernel.n_multiple, taken.intermediate_multiple, kernel.k_multiple)
    i, h = (-(-least // multiple) * multiple for least in (LEAST_I, LEAST_H))
    n = i if order == "up" else 2 * i
    experts = ExpertProblem(
        w2=scheme,
        num_experts=NUM_EXPERTS,
        intermediate=i,
        activation=sorted(taken.activations)[0],
        top_k=TOP_K,
        w13_order=order,
    )
    return Problem(
        scheme=scheme, n=n, k=h, shards=(n,), dtype=dtype, kind="experts", experts=experts
    )


def _expected(
    experts: ExpertProblem,
    scheme: Scheme,
    made: list[tuple[CanonicalWeight, ...]],
    x: Tensor,
    weights: Tensor,
    ids: Tensor,
) -> Tensor:
    """Return f32 [T, H]: the oracle's products of each token's experts, weighted and summed."""
    import torch

    from quantdock.kernels import oracle
    from quantdock.kernels.expert_activation import ACTIVATIONS, split_w13

    assert experts.activation and experts.w13_order, "_problem says both"
    total = torch.zeros(x.shape)
    for expert, (w13, w2) in enumerate(made):
        hidden = oracle.linear(scheme, w13, x.float())
        inner = ACTIVATIONS[experts.activation](*split_w13(hidden, experts.w13_order))
        routing = (weights * (ids == expert)).sum(dim=1, keepdim=True)
        total += routing * oracle.linear(scheme, w2, inner)
    return total


def _check_restored(
    kernel: Kernel,
    given: tuple[CanonicalWeight, ...],
    found: tuple[CanonicalWeight, CanonicalWeight],
) -> None:
    from quantdock.testing.numeric_checks import check_restored

    for one, other in zip(given, found, strict=True):
        check_restored(kernel, one, other)
