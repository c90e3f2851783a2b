"""Problem: one layer as kernels see it. Experts are one problem for a kernel that runs them whole.

>>> from quantdock.schemes import parse_scheme
>>> mxfp4 = parse_scheme("fp4_e2m1[1x32]:e8m0:even")
>>> experts = ExpertProblem(num_experts=8, intermediate=704, w2=mxfp4, activation="silu")
>>> problem = Problem(scheme=mxfp4, n=1408, k=256, kind="experts", experts=experts)
>>> ExpertSet(activations=frozenset({"gelu"}), most_top_k=4).why_not(experts)
('computes gelu between w13 and w2, not silu',)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from quantdock.fields import require_right, wrong_count, wrong_words
from quantdock.schemes import Scheme

INPUT = "input"  # the kind of a problem whose kernel makes a layer's quantized x (InputKernel)
EXPERTS = "experts"  # of one whose kernel runs the routed experts of a layer whole (ExpertKernel)
OWN_KINDS = frozenset({INPUT, EXPERTS})  # whose kernels have steps of their own
KINDS = ("linear", INPUT, EXPERTS)
ORDERS = ("gate_up", "interleaved", "up")  # how rows of w13 lie; "up" has no gate


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertProblem:
    """What is known of the routed experts of one layer besides w13's scheme and sizes.

    None: not known (a plan made without the model).
    """

    w2: Scheme
    num_experts: int | None = None  # that this rank holds
    intermediate: int | None = None  # I: input features of w2
    activation: str | None = None  # key of kernels.expert_activation.ACTIVATIONS; "": none of them
    top_k: int | None = None  # experts a token
    w13_order: str | None = None  # one of ORDERS
    equal_groups: bool | None = None  # of w2, as Problem's of w13
    dispatch: str = "topk"  # how tokens come: x [T, H] with ids and weights [T, k]
    has_bias: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertSet:
    """The experts that a kernel of kind "experts" runs; None means any."""

    activations: frozenset[str]
    orders: frozenset[str] = frozenset({"gate_up"})
    dispatches: frozenset[str] = frozenset({"topk"})
    most_top_k: int | None = None
    takes_bias: bool = False
    intermediate_multiple: int = 1

    def __post_init__(self) -> None:
        require_right(
            self,
            [
                *wrong_words("activations", self.activations),
                *wrong_words("orders", self.orders, ORDERS),
                *wrong_words("dispatches", self.dispatches),
                *wrong_count("intermediate_multiple", self.intermediate_multiple),
            ],
        )

    def why_not(self, problem: ExpertProblem) -> tuple[str, ...]:
        """Return every reason ``problem`` is outside the set."""
        i, top_k, most = problem.intermediate or 0, problem.top_k or 0, self.most_top_k
        failures = {
            f"computes {_list(self.activations)} between w13 and w2, not "
            f"{problem.activation or 'a function of no known name'}": (
                problem.activation is not None and problem.activation not in self.activations
            ),
            f"takes w13 as {_list(self.orders)}, not {problem.w13_order}": (
                problem.w13_order is not None and problem.w13_order not in self.orders
            ),
            f"takes tokens as {_list(self.dispatches)}, not {problem.dispatch}": (
                problem.dispatch not in self.dispatches
            ),
            f"sends a token to {most} experts at most, not {top_k}": (
                most is not None and top_k > most
            ),
            "takes no biases": problem.has_bias and not self.takes_bias,
            f"I={i} is no multiple of {self.intermediate_multiple}": (
                i % self.intermediate_multiple > 0
            ),
        }
        return tuple(reason for reason, failed in failures.items() if failed)


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One layer, or its input, as kernels see it. ``n`` or ``k`` None: not known yet."""

    scheme: Scheme  # of experts: that of w13
    n: int | None = None  # output features
    k: int | None = None  # input features
    shards: tuple[int, ...] = ()  # output features of each fused shard; empty: one shard
    dtype: str | None = None  # of activations and output
    has_bias: bool = False
    kind: str = "linear"
    repacked: bool | None = None  # True: by a kernel that repacks, False: by another; None: any
    equal_groups: bool | None = None  # whether those in act-order are of equal size; None: unknown
    batch_invariant: bool = False  # each row of x is computed as if it were alone
    promised: bool = False  # the scheme is what the method's name says: nothing replaces it
    experts: ExpertProblem | None = None  # where ``kind`` is "experts"; n and k are w13's

    @property
    def shape(self) -> str:
        """Return "N=..., K=..." for messages."""
        return f"N={'?' if self.n is None else self.n}, K={'?' if self.k is None else self.k}"

    @property
    def has_unequal_groups(self) -> bool:
        """Return whether columns in act-order are known not to become tiles when sorted."""
        w2 = None if self.experts is None else self.experts.equal_groups
        return self.equal_groups is False or w2 is False

    def changed(self, change: Callable[[Scheme], Scheme]) -> Problem:
        """Return the problem with ``change`` made to its scheme, and to that of w2."""
        experts = self.experts and replace(self.experts, w2=change(self.experts.w2))
        return replace(self, scheme=change(self.scheme), experts=experts)


def _list(words: frozenset[str]) -> str:
    return ", ".join(sorted(words))
