"""The one place where a kernel is chosen.

``select_kernel`` reads descriptors, a problem and a platform, nothing else, so any machine can test
the rules of any device.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches

from quantdock.descriptor import Kernel as Kernel
from quantdock.errors import NoKernelError
from quantdock.platform import Platform
from quantdock.policy import Policy as Policy
from quantdock.problem import OWN_KINDS
from quantdock.problem import Problem as Problem
from quantdock.schemes import Scheme
from quantdock.substitution import Substitution as Substitution

_NO_POLICY = Policy()


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejection:
    """A candidate that was not chosen, with every reason."""

    kernel: str
    reasons: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """The chosen kernel, the problem it executes, and all that was decided on the way."""

    kernel: Kernel
    problem: Problem  # as asked, or as substituted
    substitution: Substitution | None = None
    rejected: tuple[Rejection, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def scheme(self) -> Scheme:
        """Return the scheme that is executed."""
        return self.problem.scheme


@dataclass(slots=True)
class _Search:
    """The candidates for one problem, sorted into those that can run and those that cannot."""

    problem: Problem
    platform: Platform
    kernels: Sequence[Kernel]
    swap: Substitution | None = None  # what made the problem from the one that was asked
    able: list[Kernel] = field(default_factory=list)
    rejected: list[Rejection] = field(default_factory=list)

    def __post_init__(self) -> None:
        for kernel in self.kernels:
            reasons = kernel.why_not(self.problem, self.platform)
            if reasons:
                self.rejected.append(Rejection(kernel=kernel.name, reasons=reasons))
            else:
                self.able.append(kernel)

    def first(self, *, is_reference: bool) -> Kernel | None:
        return next((k for k in self.able if k.is_reference is is_reference), None)

    def named(self, name: str) -> Kernel | None:
        return next((k for k in self.able if k.name == name), None)

    def reasons(self, name: str) -> tuple[str, ...]:
        return next((r.reasons for r in self.rejected if r.kernel == name), ())


def select_kernel(
    problem: Problem,
    platform: Platform,
    kernels: Sequence[Kernel],
    substitutions: Sequence[Substitution] = (),
    policy: Policy = _NO_POLICY,
) -> Selection:
    """Return the kernel for ``problem`` and every candidate that was rejected.

    Order: an exact kernel that is no reference; a declared substitution of the platform and its
    kernel; the reference, with a warning, which an accelerator refuses unless the policy allows it.
    A kernel that the policy names runs the scheme that this order finds, if it can.

    Raises:
        NoKernelError: nothing may run it; names each candidate with each reason.
    """
    named = (policy.prefer, policy.require)
    kernels = [k for k in kernels if k.name in named or _is_candidate(k, problem.kind)]
    asked = _Search(problem, platform, kernels)
    searches = [asked]
    if not (policy.exact or problem.promised):
        searches += _substituted(problem, platform, kernels, substitutions)
    if policy.require is not None:
        required = _required(policy.require, searches)
        if policy.prefer in (None, policy.require):
            return required
        told = f"preferred kernel {policy.prefer} has no say: {policy.require} is required"
        return replace(required, warnings=(*required.warnings, told))
    warnings = []
    if policy.prefer is not None:
        if preferred := _named(policy.prefer, searches):
            return preferred
        reasons = _reasons_of(policy.prefer, searches)
        warnings.append(f"preferred kernel {policy.prefer} was not taken: {'; '.join(reasons)}")
    for search in searches:
        if kernel := search.first(is_reference=False):
            return _chosen(kernel, search, warnings)
    last = searches[-1]
    kernel = last.first(is_reference=True)
    if kernel is None or (platform.is_accelerator and not policy.allow_reference):
        raise _no_kernel(searches, kernel)
    warnings.append(f"{kernel.name} is plain torch, not a kernel for {platform}: {kernel.note}")
    return _chosen(kernel, last, warnings)


def _is_candidate(kernel: Kernel, kind: str) -> bool:
    """Return whether ``kernel`` is worth a reason: one that makes inputs is no layer's, say."""
    return kind in kernel.kinds or not (kind in OWN_KINDS or kernel.kinds <= OWN_KINDS)


def _substituted(
    problem: Problem,
    platform: Platform,
    kernels: Sequence[Kernel],
    substitutions: Sequence[Substitution],
) -> list[_Search]:
    """Return the search for what the first substitution that applies makes of ``problem``."""
    for swap in substitutions:
        if swap.applies(problem.scheme, platform):
            changed = problem.changed(swap.result)
            search = _Search(changed, platform, kernels, swap)
            if not swap.needs_kernel or search.first(is_reference=False):
                return [search]
    return []


def _chosen(
    kernel: Kernel, search: _Search, warnings: Sequence[str] = (), why: str = "comes first"
) -> Selection:
    if search.problem.batch_invariant and not kernel.is_batch_invariant:
        warnings = (*warnings, f"{kernel.name} computes rows one by one, to be batch-invariant")
    skipped = (
        Rejection(kernel=other.name, reasons=(f"can run it; {kernel.name} {why}",))
        for other in search.able
        if other is not kernel
    )
    return Selection(
        kernel=kernel,
        problem=search.problem,
        substitution=search.swap,
        rejected=(*search.rejected, *skipped),
        warnings=tuple(warnings),
    )


def _named(name: str, searches: Sequence[_Search]) -> Selection | None:
    """Return the kernel called ``name``, for the scheme that runs where none is named, or else."""
    usual = next((s for s in searches if s.first(is_reference=False)), searches[-1])
    for search in (usual, *searches):
        if kernel := search.named(name):
            return _chosen(kernel, search, why="is what the user names")
    return None


def _required(name: str, searches: Sequence[_Search]) -> Selection:
    if selection := _named(name, searches):
        return selection
    asked, reasons = searches[0], _reasons_of(name, searches)
    is_known = any(kernel.name == name for kernel in asked.kernels)
    unknown = () if is_known else (Rejection(kernel=name, reasons=reasons),)
    raise NoKernelError(
        f"The required kernel {name} cannot run {asked.problem.scheme} "
        f"with {asked.problem.shape} on {asked.platform}.",
        why=reasons,
        todo="Drop the requirement (--require, QUANTDOCK_KERNEL), or name another kernel.",
        problem=asked.problem,
        rejected=(*asked.rejected, *unknown),
    )


def _reasons_of(name: str, searches: Sequence[_Search]) -> tuple[str, ...]:
    """Return why the kernel called ``name`` cannot run, for the scheme that it comes closest to."""
    known = sorted({kernel.name for kernel in searches[0].kernels})
    if name in known:
        return min((search.reasons(name) for search in searches), key=len)
    near = get_close_matches(name, known, n=1)
    meant = f" (did you mean {near[0]}?)" if near else ""
    return (f"no kernel of that name{meant}; known here: {', '.join(known)}",)


def _no_kernel(searches: Sequence[_Search], reference: Kernel | None) -> NoKernelError:
    asked, search = searches[0], searches[-1]
    reasons = [f"{r.kernel}: {'; '.join(r.reasons)}" for r in search.rejected]
    if asked is not search:
        own = (r for r in asked.rejected if r not in search.rejected)
        scheme = asked.problem.scheme
        reasons += [f"{r.kernel} for {scheme} itself: {'; '.join(r.reasons)}" for r in own]
    if not search.kernels:
        reasons.append(f"no installed plugin offers a kernel for {search.platform.name}")
    todo = "Choose another method or device, or install a plugin that brings a kernel."
    if reference is not None:
        reasons.append(
            f"{reference.name}: can run it, but plain torch is very slow on an accelerator"
        )
        name = reference.name
        todo = f"Set QUANTDOCK_KERNEL={name} (or --require {name}) to run the slow path."
    return NoKernelError(
        f"No kernel on {search.platform} can run {search.problem.scheme} "
        f"with {search.problem.shape}.",
        why=reasons,
        todo=todo,
        problem=search.problem,
        rejected=tuple(search.rejected),
    )
