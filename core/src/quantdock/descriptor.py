"""Kernel: the facts of one implementation, which decide where it runs.

>>> from quantdock.platform import Platform
>>> from quantdock.schemes import SchemeSet, SpecSet, parse_scheme
>>> cpu = Platform(name="cpu", arch="generic", device="cpu")
>>> anything = SchemeSet(weight=SpecSet())
>>> kernel = Kernel(name="demo", target="demo:Demo", accepts=anything, k_multiple=16)
>>> problem = Problem(scheme=parse_scheme("fp8_e4m3[*x*]"), n=64, k=100)
>>> kernel.why_not(problem, cpu)
('K=100 is no multiple of 16',)
"""

from __future__ import annotations

from dataclasses import dataclass

from quantdock.fields import require_right, wrong_count, wrong_kind, wrong_tuple, wrong_words
from quantdock.footprint import PLAIN, Footprint
from quantdock.formats import FLOATS
from quantdock.platform import Platform
from quantdock.problem import KINDS, ExpertSet, Problem
from quantdock.schemes import Scheme, SchemeSet


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """One implementation of a layer and the facts that decide where it runs."""

    name: str
    target: str  # "module:Class", imported only once the kernel is chosen
    accepts: SchemeSet | tuple[SchemeSet, ...]
    requires: frozenset[str] = frozenset()  # device features
    dtypes: frozenset[str] | None = None  # of activations; None: any float
    kinds: frozenset[str] = frozenset({"linear"})
    experts: ExpertSet | None = None  # which experts, where it runs them whole
    n_multiple: int = 1
    k_multiple: int = 1
    repacks: bool = False  # re-lays integer codes at load, for a fused kernel (Marlin and its kin)
    sorts_columns: bool = False  # of act-order, by group: takes groups of equal size only
    keeps_copy: bool = False  # of the weight in the activations' dtype, beside its codes
    footprint: Footprint = PLAIN  # what it keeps of codes and scales, for the plan
    is_batch_invariant: bool = False  # can compute each row of x as if it were alone
    is_reference: bool = False  # plain torch; the last choice, and refused on accelerators
    tolerance: float = 1e-2  # |y - reference| / |reference| (Frobenius) it promises
    note: str = ""  # what a user should know of its speed or memory, for the plan

    def __post_init__(self) -> None:
        sets = self.accepts if isinstance(self.accepts, tuple) else (self.accepts,)
        wrong = [
            *wrong_kind("target", self.target, str),
            *wrong_tuple("accepts", sets, SchemeSet),
            *wrong_words("requires", self.requires),
            *wrong_words("kinds", self.kinds, KINDS),
            *wrong_count("n_multiple", self.n_multiple),
            *wrong_count("k_multiple", self.k_multiple),
        ]
        if self.dtypes is not None:
            wrong += wrong_words("dtypes", self.dtypes, FLOATS)
        if self.experts is not None:
            wrong += wrong_kind("experts", self.experts, ExpertSet)
        require_right(self, wrong)

    def why_not(self, problem: Problem, platform: Platform) -> tuple[str, ...]:
        """Return every reason this kernel cannot run ``problem``; empty means it can."""
        missing = sorted(self.requires - platform.features)
        n, k, dtype = problem.n or 0, problem.k or 0, problem.dtype
        failures = {
            f"runs {', '.join(sorted(self.kinds))} layers only": problem.kind not in self.kinds,
            f"{platform} lacks {missing}": bool(missing),
            f"N={n} is no multiple of {self.n_multiple}": n % self.n_multiple > 0,
            f"K={k} is no multiple of {self.k_multiple}": k % self.k_multiple > 0,
            "leaves codes as they are; one that repacks them is required": (
                problem.repacked is True and not self.repacks
            ),
            "repacks codes, which the method that was asked for leaves as they are": (
                problem.repacked is False and self.repacks
            ),
            "sorts columns by group, and groups are of unequal size": (
                self.sorts_columns and problem.has_unequal_groups
            ),
            "cannot compute each token as if it were alone": (
                problem.batch_invariant and problem.kind != "linear" and not self.is_batch_invariant
            ),
            f"takes {', '.join(sorted(self.dtypes or ()))} activations, not {dtype}": (
                self.dtypes is not None and dtype is not None and dtype not in self.dtypes
            ),
        }
        return (
            *self.why_not_scheme(problem.scheme),
            *self._why_not_experts(problem),
            *(reason for reason, failed in failures.items() if failed),
        )

    def _why_not_experts(self, problem: Problem) -> tuple[str, ...]:
        experts = problem.experts
        if experts is None or self.experts is None:
            return ()
        w2 = () if experts.w2 == problem.scheme else self.why_not_scheme(experts.w2)
        return (*(f"of w2: {reason}" for reason in w2), *self.experts.why_not(experts))

    def why_not_scheme(self, scheme: Scheme) -> tuple[str, ...]:
        """Return every reason ``scheme`` is outside the set that comes closest to taking it."""
        sets = self.accepts if isinstance(self.accepts, tuple) else (self.accepts,)
        reasons = [accepted.why_not(scheme) for accepted in sets]
        return min(reasons, key=len, default=("accepts no scheme",))
