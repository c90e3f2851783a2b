"""Checks of kernels that make quantized inputs, and of layers that take them."""

from __future__ import annotations

from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

from quantdock.kernel import Kernel, Problem
from quantdock.platform import Platform
from quantdock.problem import INPUT
from quantdock.schemes import Scheme

if TYPE_CHECKING:
    from torch import Tensor

M, K, EPS = 5, 160, 1e-6
MOST_OFF = 1e-2  # share of codes of a gate or norm that may be neighbours of the definition's


def check_input_kernel(kernel: Kernel, scheme: Scheme, platform: Platform, dtype: str) -> None:
    """Assert that ``kernel`` makes the codes that plain torch makes, of x, a gate and a norm."""
    import torch

    from quantdock.kernels.plain_input import PlainInput
    from quantdock.numerics import torch_dtype

    problem = Problem(scheme=scheme, k=K, dtype=dtype, kind=INPUT)
    made, plain = resolve_name(kernel.target)(problem), PlainInput(problem)
    random = torch.Generator().manual_seed(K)
    x, residual = (torch.randn(M, 2 * K, generator=random) for _ in range(2))
    x, residual, weight = (t.to(torch_dtype(dtype)) for t in (x, residual[:, :K], residual[0, K:]))
    scale = torch.tensor([0.02, 0.03]) if scheme.is_static else None
    calls: dict[str, tuple[Any, ...]] = {
        "quantize": (x[:, :K], scale),
        "silu_mul": (x, scale),
        "rms_norm": (x[:, :K], weight, EPS, scale, residual),
    }
    for name, given in calls.items():
        there = [t.to(platform.device) if isinstance(t, torch.Tensor) else t for t in given]
        found, wanted = getattr(made, name)(*there), getattr(plain, name)(*given)
        share = _share_off(found[0].cpu(), wanted[0])
        assert share <= (0.0 if name == "quantize" else MOST_OFF), (
            f"{kernel.name}.{name} gives other codes than the definition in {share:.1%}: {scheme}"
        )
        rows = wanted[1].shape[0]
        torch.testing.assert_close(found[1][:rows].cpu(), wanted[1], rtol=2.0**-7, atol=0.0)
        if len(found) > 2:
            assert torch.equal(found[2].cpu(), wanted[2]), f"{kernel.name}.{name}: another sum"


def _share_off(found: Tensor, wanted: Tensor) -> float:
    import torch

    rows = found[: wanted.shape[0]].view(torch.uint8)
    return float((rows != wanted.view(torch.uint8)).float().mean())
