"""Inputs that are quantized before their layer is called: which may be, and what makes them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from quantdock.kernel import Problem, select_kernel
from quantdock.kernels.making import make_kernel
from quantdock.kernels.quantized_input import InputKernel, QuantizedInput, refused
from quantdock.problem import INPUT

if TYPE_CHECKING:
    from quantdock.dispatch import Dispatch
    from quantdock.schemes import Scheme


def can_take(kernel: Any, problem: Problem) -> bool:
    """Return whether ``kernel`` runs ``problem`` from codes that were made before it is called."""
    scheme, x = problem.scheme, problem.scheme.activation
    has_more = x is None or x.zero or x.second is not None or scheme.input_multiplier
    has_more = has_more or problem.batch_invariant
    return not has_more and hasattr(kernel, "apply_quantized")


def input_kernel(problem: Problem, scheme: Scheme, dispatch: Dispatch) -> InputKernel:
    """Return what makes x for the layer of ``problem``, which executes ``scheme``.

    Chosen among the kernels of the platform as a layer's is; what the user says of layers' kernels
    (``--require``) does not count here.
    """
    wanted = replace(problem, scheme=scheme, kind=INPUT)
    chosen = select_kernel(wanted, dispatch.platform, dispatch.kernels)
    made: InputKernel = make_kernel(chosen.kernel, wanted)
    return made


def require_taken(x: QuantizedInput, kernel: Any, problem: Problem, layer: str) -> None:
    """Raise FormatError where x is quantized for another layer, or for none of this kind."""
    if not can_take(kernel, problem):
        raise refused(f"A layer ({layer})", x, "x itself")
    wanted = problem.scheme.activation
    if x.spec != wanted or x.shape[-1] != problem.k:
        raise refused(f"A layer ({layer})", x, f"{wanted} codes of shape [..., {problem.k}]")
