"""One layer's plan: its decision, the kernel that runs it, the memory it takes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from quantdock.errors import NoKernelError
from quantdock.footprint import PLAIN, Footprint
from quantdock.formats import DTYPES
from quantdock.kernel import Problem, Rejection, Selection, Substitution
from quantdock.plan.plan import LayerPlan, Swap
from quantdock.problem import EXPERTS, ExpertProblem
from quantdock.schemes import Decision, LayerFacts, Scheme

if TYPE_CHECKING:
    from quantdock.config import QuantizationConfig
    from quantdock.dispatch import Dispatch

_COLUMN_BYTES = 4  # of an input multiplier, or of the place of a column in act-order
# A head is a linear layer to kernels, and so is each matrix of experts that none runs whole.
_PROBLEM_KINDS = {"head": "linear"}
Asked = tuple[Problem, Problem | None]  # a layer, and the experts that it is a matrix of


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What running one problem came to: a kernel, or why there is none."""

    kernel: str | None
    note: str = ""  # what the kernel says of itself, or what to do without one
    swap: Swap | None = None
    rejected: tuple[Rejection, ...] = ()
    warnings: tuple[str, ...] = ()
    keeps_copy: bool = False  # of the weight in the activations' dtype
    footprint: Footprint = PLAIN


def plan_layer(
    config: QuantizationConfig,
    facts: LayerFacts,
    n: int | None,
    k: int | None,
    dtype: str,
    dispatch: Dispatch,
    *,
    has_bias: bool = False,
    copies: int = 1,
    equal_groups: bool | None = None,
    decision: Decision | None = None,
    experts: tuple[Decision, Decision] | None = None,
    choices: dict[Asked, Choice] | None = None,
    selection: Selection | None = None,
) -> LayerPlan:
    """Return what a layer [n, k] of ``config`` runs on the platform of ``dispatch``.

    Nothing raises: a layer that is refused or that no kernel can run says so in its plan.

    Args:
        dtype: of activations and unquantized weights, such as "bfloat16".
        copies: matrices that the layer holds, such as those of all experts.
        equal_groups: whether those in act-order are of equal size, where that is known.
        decision: what ``config.scheme_for(facts)`` returned, where the caller has asked already.
        experts: what w13 and w2 of its module become, where not both are what this layer is.
        choices: remembers the kernel of every problem; pass one dict for all layers of a model.
        selection: the kernel that a loaded layer has.
    """
    decision = decision or config.scheme_for(facts)
    choice = Choice(kernel=None)
    if decision.scheme is not None and selection is not None:
        choice = _chosen(decision.scheme, selection)
    elif decision.scheme is not None:
        problem = Problem(
            scheme=decision.scheme,
            n=n,
            k=k,
            dtype=dtype,
            has_bias=has_bias,
            kind=_PROBLEM_KINDS.get(facts.kind, facts.kind),
            repacked=config.repacked,
            equal_groups=equal_groups,
            promised=decision.promised,
        )
        asked = problem, _whole(problem, experts)
        choice = _remembered(asked, dispatch, {} if choices is None else choices)
    memory = memory_bytes(
        decision.scheme, n, k, dtype, has_bias=has_bias, copies=copies, footprint=choice.footprint
    )
    if memory is not None and choice.keeps_copy:
        memory += memory_bytes(None, n, k, dtype, copies=copies) or 0
    return replace(_outcome(facts, decision, choice), n=n, k=k, copies=copies, bytes_memory=memory)


def _outcome(facts: LayerFacts, decision: Decision, choice: Choice) -> LayerPlan:
    return LayerPlan(
        prefix=facts.prefix,
        kind=facts.kind,
        decision=decision.kind,
        scheme=str(decision.scheme) if decision.scheme is not None else None,
        because=decision.because,
        source=decision.source,
        todo=decision.todo,
        promised=decision.promised,
        kernel=choice.kernel,
        kernel_note=choice.note,
        substitution=choice.swap,
        rejected=choice.rejected,
        warnings=choice.warnings,
    )


def _remembered(asked: Asked, dispatch: Dispatch, choices: dict[Asked, Choice]) -> Choice:
    if asked not in choices:
        choices[asked] = _choose(*asked, dispatch)
    return choices[asked]


def _whole(problem: Problem, experts: tuple[Decision, Decision] | None) -> Problem | None:
    """Return the experts that ``problem`` is one matrix of; None if it is of no experts."""
    if problem.kind != EXPERTS:
        return None
    if experts is None:
        return replace(problem, experts=ExpertProblem(w2=problem.scheme))
    w13, w2 = experts
    assert w13.scheme is not None and w2.scheme is not None, "all of a module is quantized"
    promised = w13.promised or w2.promised
    whole = ExpertProblem(w2=w2.scheme)
    return replace(problem, scheme=w13.scheme, promised=promised, experts=whole)


def _choose(problem: Problem, whole: Problem | None, dispatch: Dispatch) -> Choice:
    try:
        return _chosen(problem.scheme, _select(problem, whole, dispatch))
    except NoKernelError as error:
        return Choice(
            kernel=None,
            note=error.todo,
            swap=None if problem.promised else _declared_swap(problem.scheme, dispatch),
            rejected=_rejections(error),
        )


def _select(problem: Problem, whole: Problem | None, dispatch: Dispatch) -> Selection:
    if whole is None:
        return dispatch.select(problem)
    return dispatch.select_experts(whole, [replace(problem, kind="linear")])[0]


def _chosen(scheme: Scheme, selection: Selection) -> Choice:
    change = selection.substitution
    return Choice(
        kernel=selection.kernel.name,
        note=selection.kernel.note,
        swap=_swap(scheme, change) if change else None,
        rejected=selection.rejected,
        warnings=selection.warnings,
        keeps_copy=selection.kernel.keeps_copy,
        footprint=selection.kernel.footprint,
    )


def _declared_swap(scheme: Scheme, dispatch: Dispatch) -> Swap | None:
    """Return what the platform would run instead of ``scheme`` if it had a kernel for that."""
    if dispatch.policy.exact:
        return None
    rows = (s for s in dispatch.substitutions if s.applies(scheme, dispatch.platform))
    return next((_swap(scheme, row) for row in rows if not row.needs_kernel), None)


def _swap(asked: Scheme, row: Substitution) -> Swap:
    return Swap(
        source=str(asked), target=str(row.result(asked)), why=row.why, accuracy=row.accuracy
    )


def _rejections(error: NoKernelError) -> tuple[Rejection, ...]:
    """Return every candidate with its reasons, and what the error's text says besides."""
    rejected = error.facts.get("rejected", ())
    assert isinstance(rejected, tuple), "select_kernel gives a tuple of Rejection"
    known = {text for r in rejected for text in (f"{r.kernel}: {'; '.join(r.reasons)}", *r.reasons)}
    return (*rejected, *(_rejection(reason) for reason in error.why if reason not in known))


def _rejection(text: str) -> Rejection:
    """Return ``text``, which begins with the name of a kernel or with no name, as a candidate."""
    head, _, tail = text.partition(": ")
    if not tail or " " in head:
        return Rejection(kernel="", reasons=(text,))
    return Rejection(kernel=head, reasons=(tail,))


def memory_bytes(
    scheme: Scheme | None,
    n: int | None,
    k: int | None,
    dtype: str,
    *,
    has_bias: bool = False,
    copies: int = 1,
    footprint: Footprint = PLAIN,
) -> int | None:
    """Return the bytes of a loaded layer: codes, scales, zero points, bias; None if unknown.

    Those that fill up a kernel's blocks are in the plan that loading makes.
    """
    if n is None or k is None:
        return None
    wide = DTYPES[dtype].bits // 8
    if scheme is None:
        weight = n * k * wide
    else:
        spec = scheme.weight
        columns = k * _COLUMN_BYTES * (spec.act_order + scheme.input_multiplier)
        weight = footprint.weight_bytes(spec, n, k) + columns
    return copies * (weight + (n * wide if has_bias else 0))
