"""Resolution: which of a shorthand's schemes a platform runs with a kernel of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product

from quantdock.dispatch import Dispatch
from quantdock.errors import NoKernelError
from quantdock.kernel import Problem
from quantdock.schemes import Scheme


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolution:
    """The scheme that a shorthand stands for here, and why it is this one."""

    scheme: Scheme
    because: str


def resolve(
    word: str,
    schemes: Sequence[Scheme],
    dispatch: Dispatch | None,
    *,
    kind: str = "linear",
    n: int | None = None,
    k: int | None = None,
) -> Resolution:
    """Return the first of ``schemes`` with a kernel that is no reference, else the first.

    A layer [n, k] that fits none of these kernels gets what linear layers of other shapes get, so
    that one word does not turn into a mixture without need. A kernel that the user names decides
    where it runs one of them; else a word means what it does where none is named.
    """
    if dispatch is None:
        return Resolution(scheme=schemes[0], because=f"{word} is {schemes[0]}")
    problems = [
        Problem(scheme=scheme, n=rows, k=columns, kind=of_kind, promised=True)  # as it is
        for of_kind, rows, columns in ((kind, n, k), ("linear", None, None))
        for scheme in schemes
    ]
    unnamed = replace(dispatch, policy=replace(dispatch.policy, prefer=None, require=None))
    for asked, problem in product((dispatch, unnamed), problems):
        if _has_own_kernel(problem, asked):
            scheme = problem.scheme
            because = f"{word} is {scheme} on {dispatch.platform}, which has a kernel for it"
            return Resolution(scheme=scheme, because=because)
    one = len(schemes) == 1
    which, any_of = (
        ("its only scheme", "it") if one else (f"the first of its {len(schemes)} schemes", "any")
    )
    because = (
        f"{word} is {schemes[0]}, {which}; {dispatch.platform} has no kernel for {any_of} as it is"
    )
    return Resolution(scheme=schemes[0], because=because)


def _has_own_kernel(problem: Problem, dispatch: Dispatch) -> bool:
    """Return whether a kernel that is no reference runs the problem; a layer may get another."""
    try:
        return not dispatch.select(problem).kernel.is_reference
    except NoKernelError:
        return False
