"""Dispatch: a platform, the kernels and substitutions it offers, and the user's policy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from quantdock.errors import NoKernelError
from quantdock.kernel import (
    Kernel,
    Policy,
    Problem,
    Selection,
    Substitution,
    select_kernel,
)
from quantdock.platform import Platform
from quantdock.problem import EXPERTS

Search = tuple[Platform, tuple[Kernel, ...], tuple[Substitution, ...], Policy]


@dataclass(frozen=True, slots=True, kw_only=True)
class Dispatch:
    """All that choosing a kernel needs besides the problem; made by the registry."""

    platform: Platform
    kernels: tuple[Kernel, ...]
    substitutions: tuple[Substitution, ...] = ()
    policy: Policy = field(default_factory=Policy)
    _selected: dict[Problem, Selection] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def select(self, problem: Problem) -> Selection:
        """Return the kernel for ``problem``.

        Equal problems have one answer, found once: most layers of a model are alike.
        """
        if (found := self._selected.get(problem)) is None:
            found = self._selected[problem] = self._select(problem)
        return found

    def _select(self, problem: Problem) -> Selection:
        policy = self.policy
        problem = replace(problem, batch_invariant=policy.batch_invariant)
        search = (self.platform, self.kernels, self.substitutions, policy)
        try:
            found = select_kernel(problem, *search)
        except NoKernelError as error:
            if policy.require is None and (nearer := self._nearer(problem, search)):
                todo = f"{nearer} Else: {error.todo}"
                facts = error.facts | {"remedy": nearer}
                raise NoKernelError(error.what, why=error.why, todo=todo, **facts) from error
            raise
        is_last = found.kernel.is_reference and found.warnings and policy.require is None
        if is_last and (nearer := self._nearer(problem, search)):
            told = (*found.warnings[:-1], f"{found.warnings[-1]}. {nearer}")
            return replace(found, warnings=told)
        return found

    def _nearer(self, problem: Problem, search: Search) -> str:
        """Return what else could be asked for, so that a kernel runs ``problem``; "" if nothing.

        That is another dtype of activations, codes that a kernel may repack, or a substitution
        that the user alone forbids.
        """
        platform, kernels, substitutions, policy = search
        others = [d for d in self.platform.dtypes if d != problem.dtype] if problem.dtype else []
        ways = [
            ("Leave out the method's name (--quantization)", replace(problem, repacked=None)),
            *((f"Use --dtype {d}", replace(problem, dtype=d)) for d in others),
        ]
        asked = [(todo, other, policy) for todo, other in ways if other != problem]
        if policy.exact and not problem.promised:
            asked.append(("Leave out --exact", problem, replace(policy, exact=False)))
        for todo, other, allowed in asked:
            try:
                found = select_kernel(other, platform, kernels, substitutions, allowed)
            except NoKernelError:
                continue
            if not found.kernel.is_reference:
                changed = f"as {found.scheme} " if found.substitution else ""
                return f"{todo}: {found.kernel.name} runs it {changed}then."
        return ""

    def select_experts(self, whole: Problem, matrices: Sequence[Problem]) -> tuple[Selection, ...]:
        """Return the one kernel that runs experts whole, else one for each of their matrices.

        Args:
            whole: of kind "experts", promised if one of them is. matrices: w13 and w2 as linear
                layers.
        Raises:
            NoKernelError: nothing may run one of the matrices either.
        """
        if preferred := self._preferred(matrices):
            return preferred
        try:
            return (self.select(whole),)
        except NoKernelError as error:
            refused, rejected = error, error.facts.get("rejected", ())
            assert isinstance(rejected, tuple), "select_kernel gives a tuple of Rejection"
        remedy = str(refused.facts.get("remedy", ""))
        try:
            chosen = [self.select(matrix) for matrix in matrices]
        except NoKernelError as error:
            if remedy:
                raise _with_remedy(error, remedy) from error
            raise
        told = (f"experts run one after the other here. {remedy}",) if remedy else ()
        return tuple(
            replace(one, rejected=(*rejected, *one.rejected), warnings=(*told, *one.warnings))
            for one in chosen
        )

    def _preferred(self, matrices: Sequence[Problem]) -> tuple[Selection, ...]:
        """Return the kernel that the user prefers for each matrix; empty if it does not run all."""
        name = self.policy.prefer
        if name is None or any(k.name == name and EXPERTS in k.kinds for k in self.kernels):
            return ()
        try:
            chosen = tuple(self.select(matrix) for matrix in matrices)
        except NoKernelError:
            return ()
        return chosen if all(one.kernel.name == name for one in chosen) else ()


def _with_remedy(error: NoKernelError, remedy: str) -> NoKernelError:
    """Return the error of one matrix of experts with what lets a kernel run them whole."""
    own, todo = str(error.facts.get("remedy", "")), error.todo
    todo = todo.replace(own, remedy, 1) if own else f"{remedy} Else: {todo}"
    return NoKernelError(error.what, why=error.why, todo=todo, **error.facts | {"remedy": remedy})
