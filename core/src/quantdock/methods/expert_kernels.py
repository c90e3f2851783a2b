"""Which kernels run the experts of a layer: one that runs them whole, else a loop over two."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from quantdock.dispatch import Dispatch
from quantdock.kernel import Problem, Selection
from quantdock.kernels.expert_loop import ExpertLoop
from quantdock.kernels.row_by_row import kernel_of


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertKernels:
    """What was chosen for w13 and for w2 (one kernel for both where it runs experts whole)."""

    w13: Selection
    w2: Selection
    kernel: Any  # of the ExpertKernel protocol

    def __str__(self) -> str:
        names = dict.fromkeys(found.kernel.name for found in (self.w13, self.w2))
        return ", ".join(names)


def choose_expert_kernels(
    problem: Problem,
    w2: Problem,
    dispatch: Dispatch,
    gate: Callable[[Tensor], Tensor],
) -> ExpertKernels:
    """Return the kernels for ``problem``, which is of kind "experts" and has w13's sizes.

    Args:
        w2: the same as a linear layer's.
    Raises:
        NoKernelError: nothing may run w13 or w2.
    """
    experts = problem.experts
    assert experts is not None and experts.num_experts, "FusedMoE says what its experts are"
    linear = (replace(problem, kind="linear", experts=None), w2)
    whole = replace(problem, promised=problem.promised or w2.promised)
    found = dispatch.select_experts(whole, linear)
    if len(found) == 1:
        return ExpertKernels(w13=found[0], w2=found[0], kernel=kernel_of(found[0]))
    first, second = (kernel_of(selection) for selection in found)
    loop = ExpertLoop(w13=first, w2=second, gate=gate, num_experts=experts.num_experts)
    return ExpertKernels(w13=found[0], w2=found[1], kernel=loop)
