"""Quantized inputs in plain torch, for every device: the function, then ``numerics.quantize``."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from quantdock.kernel import Problem
from quantdock.numerics import fold_input, quantize


class PlainInput:
    """Makes the inputs of layers of one scheme; see InputKernel."""

    def __init__(self, problem: Problem) -> None:
        spec = problem.scheme.activation
        assert spec is not None, "its descriptor accepts quantized activations only"
        self.spec = spec

    def quantize(self, x: Tensor, scale: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return the codes of ``x``, and their scales."""
        rows = x.reshape(x.shape[:-1].numel(), x.shape[-1])
        folded = None
        if scale is not None:  # no rows have no scale
            folded = fold_input(scale, None, self.spec)[0].expand(min(len(rows), 1), 1)
        made = quantize(rows, self.spec, scale=folded)
        return made.codes, made.scale

    def silu_mul(self, x: Tensor, scale: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return the codes of ``silu(gate) * up``, and their scales."""
        gate, up = x.chunk(2, dim=-1)
        return self.quantize(F.silu(gate) * up, scale)

    def rms_norm(
        self, x: Tensor, weight: Tensor, eps: float, scale: Tensor | None, residual: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the codes of the norm of ``x + residual``, their scales, and the sum."""
        total = x if residual is None else (x + residual).to(x.dtype)
        return *self.quantize(rms_norm(total, weight, eps), scale), total


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Return x [..., K] over its root mean square, then times ``weight`` [K]; each step rounded."""
    values = x.to(torch.float32)
    inverse = torch.rsqrt(values.square().mean(dim=-1, keepdim=True) + eps)
    return (weight * (values * inverse).to(x.dtype)).to(x.dtype)
