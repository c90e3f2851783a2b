"""Weight-only layers that keep their weight in 16 bits too, which is faster for many rows.

Codes are read for few rows, where reading the weight takes the time. The copy takes more memory
than the codes save, so these kernels run only where they are preferred or required by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor
from torch.nn.functional import linear

from quantdock.kernel import Problem
from quantdock.kernels.wrapper import KernelWrapper
from quantdock.numerics import CanonicalWeight, torch_dtype
from quantdock_cuda.packed_linear import CudaPackedLinear
from quantdock_cuda.scaled_linear import CudaScaledLinear

COPY = "weight_copy"
FEW = 64  # rows of x up to which codes are read


class _WithCopy(KernelWrapper):
    """A kernel in front of which a copy of the weight stands; ``_kernel`` is its class."""

    _kernel: type[Any]

    def __init__(self, problem: Problem) -> None:
        super().__init__(self._kernel(problem))
        self.problem = problem
        self._dtype = torch_dtype(problem.dtype or "bfloat16")

    def prepare(self, weight: CanonicalWeight) -> dict[str, Tensor]:
        """Return the kernel's tensors and ``weight_copy`` [N, K] in the activations' dtype."""
        tensors: dict[str, Tensor] = self.wrapped.prepare(weight)
        return {**tensors, COPY: weight.dense(self._dtype)}

    def restore(self, tensors: Mapping[str, Tensor]) -> CanonicalWeight:
        """Return the weight that ``prepare`` got, bit for bit."""
        weight: CanonicalWeight = self.wrapped.restore(tensors)
        return weight

    def apply(self, tensors: Mapping[str, Tensor], x: Tensor, bias: Tensor | None) -> Tensor:
        """Return ``x @ weight.T + bias``; x is [..., K] of any strides, the result in its dtype."""
        if x.dtype != self._dtype or x.shape[:-1].numel() <= FEW:
            result: Tensor = self.wrapped.apply(tensors, x, bias)
            return result
        return linear(x, tensors[COPY], bias if bias is None else bias.to(x.dtype))

    def warmup(self, m_buckets: tuple[int, ...]) -> None:
        """Compile what reads codes; see the kernel's own."""
        self.wrapped.warmup([m for m in m_buckets if m <= FEW])


class CopiedPackedLinear(_WithCopy):
    """Integer weights of 2 to 8 bits."""

    _kernel = CudaPackedLinear


class CopiedScaledLinear(_WithCopy):
    """fp8 and int8 weights, activations as given."""

    _kernel = CudaScaledLinear
