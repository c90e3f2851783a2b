"""Dispatch: a platform, the kernels and substitutions it offers, and the user's policy."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from quantdock.kernel import Kernel, Policy, Problem, Selection, Substitution, select_kernel
from quantdock.platform import Platform


@dataclass(frozen=True, slots=True, kw_only=True)
class Dispatch:
    """All that choosing a kernel needs besides the problem; made by the registry."""

    platform: Platform
    kernels: tuple[Kernel, ...]
    substitutions: tuple[Substitution, ...] = ()
    policy: Policy = field(default_factory=Policy)

    def select(self, problem: Problem, *, exact: bool = False) -> Selection:
        """Return the kernel for ``problem``; ``exact`` forbids substitutions for this one."""
        policy = replace(self.policy, exact=True) if exact else self.policy
        return select_kernel(problem, self.platform, self.kernels, self.substitutions, policy)
