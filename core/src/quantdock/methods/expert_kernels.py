"""Which kernels run the experts of a layer: one that runs them whole, else a loop over two."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pkgutil import resolve_name
from typing import Any

from torch import Tensor

from quantdock.dispatch import Dispatch
from quantdock.errors import NoKernelError
from quantdock.kernel import Problem, Rejection, Selection
from quantdock.kernels.expert_loop import ExpertLoop


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
    *,
    exact: bool,
) -> ExpertKernels:
    """Return the kernels for ``problem``, which is of kind "experts" and has w13's sizes.

    Args:
        w2: the same as a linear layer's. exact: forbid substitutions.
    Raises:
        NoKernelError: nothing may run w13 or w2.
    """
    assert problem.experts is not None, "FusedMoE says what its experts are"
    try:
        whole = dispatch.select(problem, exact=exact)
    except NoKernelError as error:
        rejected = error.facts.get("rejected", ())
        assert isinstance(rejected, tuple), "select_kernel gives a tuple of Rejection"
    else:
        kernel = resolve_name(whole.kernel.target)(_executed(problem, whole))
        return ExpertKernels(w13=whole, w2=whole, kernel=kernel)
    chosen = []
    for linear in (replace(problem, kind="linear", experts=None), w2):
        selection = dispatch.select(linear, exact=exact)
        chosen.append((linear, _with_reasons(selection, rejected, dispatch)))
    first, second = (resolve_name(s.kernel.target)(_executed(p, s)) for p, s in chosen)
    number = problem.experts.num_experts
    assert number is not None, "FusedMoE counts its experts"
    loop = ExpertLoop(w13=first, w2=second, gate=gate, num_experts=number)
    return ExpertKernels(w13=chosen[0][1], w2=chosen[1][1], kernel=loop)


def _executed(problem: Problem, selection: Selection) -> Problem:
    change = selection.substitution
    return problem if change is None else problem.changed(change.result)


def _with_reasons(
    selection: Selection, whole: tuple[Rejection, ...], dispatch: Dispatch
) -> Selection:
    """Return ``selection``; kernels that run experts whole are rejected for what they said."""
    kinds = {kernel.name: kernel.kinds for kernel in dispatch.kernels}
    others = (r for r in selection.rejected if "experts" not in kinds.get(r.kernel, ()))
    said = (r for r in whole if "experts" in kinds.get(r.kernel, ()))
    return replace(selection, rejected=(*said, *others))
