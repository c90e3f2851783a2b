"""Kernels made for a problem; one that cannot promise batch-invariant results runs row by row.

A sum of many products depends on their order, and libraries choose the order by the number of rows
of x. Where no row of a result may depend on the rows beside it, a kernel either has one order for
all (``Kernel.is_batch_invariant``), or is called for one row after the other, on memory that is
aligned alike.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from quantdock.kernel import Selection
from quantdock.kernels.making import make_kernel
from quantdock.kernels.wrapper import KernelWrapper


def kernel_of(selection: Selection) -> Any:
    """Return the chosen kernel, made for the problem that it executes."""
    made = make_kernel(selection.kernel, selection.problem)
    alone = selection.problem.batch_invariant and not selection.kernel.is_batch_invariant
    return RowByRow(made) if alone else made


class RowByRow(KernelWrapper):
    """A linear kernel that is given one row of x at a time; all else is the kernel's own."""

    def __init__(self, kernel: Any) -> None:
        super().__init__(kernel)
        if hasattr(kernel, "apply_partial"):
            self.apply_partial = self._apply_partial

    def apply(self, tensors: Mapping[str, Tensor], x: Tensor, bias: Tensor | None) -> Tensor:
        """Return ``x @ weight.T + bias``; x is [..., K] of any strides, the result in its dtype."""
        return _by_row(lambda row: self.wrapped.apply(tensors, row, bias), x)

    def _apply_partial(self, tensors: Mapping[str, Tensor], x: Tensor) -> Tensor:
        return _by_row(lambda row: self.wrapped.apply_partial(tensors, row), x)


def _by_row(run: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    rows = x.reshape(-1, x.shape[-1])
    if len(rows) == 0:
        return run(x)
    results = [run(rows[i : i + 1].clone()) for i in range(len(rows))]
    return torch.cat(results).view(*x.shape[:-1], -1)
