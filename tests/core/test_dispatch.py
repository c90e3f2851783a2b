"""What else could be asked for, so that a kernel runs what none, or only the reference, runs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from quantdock.dispatch import Dispatch
from quantdock.errors import NoKernelError
from quantdock.kernel import Kernel, Policy, Problem
from quantdock.platform import Platform
from quantdock.problem import ExpertProblem, ExpertSet
from quantdock.schemes import SchemeSet, SpecSet, parse_scheme
from quantdock.substitution import Substitution

DEVICE = Platform(name="toy", arch="t1", device="toy", dtypes=("bfloat16", "float32"))
ANY = SchemeSet(weight=SpecSet())
FAST = Kernel(
    name="fast", target="toy:Fast", accepts=ANY, dtypes=frozenset({"bfloat16"}), k_multiple=16
)
FUSED = replace(FAST, name="fused", dtypes=None, repacks=True)
AS_GIVEN = Substitution(
    name="as_given",
    source=SchemeSet(weight=SpecSet(), activation=SpecSet()),
    change="weight_only",
    why="it is faster",
    accuracy="closer",
)
REFERENCE = Kernel(name="reference", target="toy:Ref", accepts=ANY, is_reference=True, note="slow")
RELU = ExpertSet(activations=frozenset({"relu"}), orders=frozenset({"up"}))
PROBLEM = Problem(scheme=parse_scheme("int4[1x32]"), n=64, k=64, dtype="float32")


def dispatch(*kernels: Kernel, on: Platform = DEVICE, **policy: Any) -> Dispatch:
    return Dispatch(platform=on, kernels=(*kernels, REFERENCE), policy=Policy(**policy))


def remedy(offers: Dispatch, problem: Problem = PROBLEM) -> str:
    with pytest.raises(NoKernelError) as caught:
        offers.select(problem)
    return caught.value.todo


def test_where_only_the_dtype_keeps_a_kernel_away_it_is_the_remedy():
    assert remedy(dispatch(FAST)).startswith("Use --dtype bfloat16: fast runs it then. Else: Set ")


def test_where_only_the_method_that_was_named_keeps_a_kernel_away_it_is_the_remedy():
    named = replace(PROBLEM, repacked=False)
    todo = remedy(dispatch(FUSED), named)
    assert todo.startswith("Leave out the method's name (--quantization): fused runs it then.")


def test_where_only_exact_keeps_a_kernel_away_it_is_the_remedy():
    """A method that promises its scheme forbids the same, and no option of the user's helps."""
    problem = replace(PROBLEM, scheme=parse_scheme("int4[1x32] x int8[1x*]:dynamic"))
    offers = Dispatch(
        platform=DEVICE,
        kernels=(FUSED, REFERENCE),
        substitutions=(AS_GIVEN,),
        policy=Policy(exact=True),
    )
    told = "Leave out --exact: fused runs it as int4[1x32] then. Else: Choose another method"
    assert remedy(offers, problem).startswith(told)
    with pytest.raises(NoKernelError) as caught:
        offers.select(replace(problem, promised=True))
    assert caught.value.todo.startswith("Choose another method")


@pytest.mark.parametrize("kernels", [(), (FUSED,)])
def test_the_remedy_for_experts_names_what_would_run_them_whole(kernels):
    whole = replace(FAST, name="whole", dtypes=None, kinds=frozenset({"experts"}), experts=RELU)
    matrix = replace(PROBLEM, scheme=parse_scheme("int4[1x32] x int8[1x*]:dynamic"))
    experts = ExpertProblem(w2=matrix.scheme, activation="relu", w13_order="up", intermediate=64)
    offers = Dispatch(
        platform=DEVICE,
        kernels=(*kernels, whole, REFERENCE),
        substitutions=(AS_GIVEN,),
        policy=Policy(exact=True),
    )
    with pytest.raises(NoKernelError) as caught:
        offers.select_experts(replace(matrix, kind="experts", experts=experts), [matrix] * 2)
    told = "Leave out --exact: whole runs it as int4[1x32] then. Else: Choose another method"
    assert caught.value.todo.startswith(told)
    assert caught.value.what.endswith("with N=64, K=64.")


def test_experts_that_only_the_dtype_keeps_from_running_whole_say_so():
    whole = replace(FAST, name="whole", kinds=frozenset({"experts"}), experts=RELU)
    experts = ExpertProblem(w2=PROBLEM.scheme, activation="relu", w13_order="up", intermediate=64)
    problem = replace(PROBLEM, kind="experts", experts=experts)
    offers = dispatch(replace(FUSED, name="any"), whole)
    told = "experts run one after the other here. Use --dtype bfloat16: whole runs it then."
    assert [
        (one.kernel.name, one.warnings) for one in offers.select_experts(problem, [PROBLEM])
    ] == [("any", (told,))]
    other = replace(problem, experts=replace(experts, activation="silu"))
    assert offers.select_experts(other, [PROBLEM])[0].warnings == ()


@pytest.mark.parametrize("change", [{"k": 40}, {"dtype": "bfloat16", "k": 40}, {"dtype": None}])
def test_another_dtype_is_no_remedy_where_something_else_is_in_the_way(change):
    offers, problem = dispatch(FAST), replace(PROBLEM, **change)
    if problem.dtype is None:
        assert offers.select(problem).kernel is FAST
    else:
        assert remedy(offers, problem).startswith("Set QUANTDOCK_KERNEL=reference")


def test_a_kernel_that_is_required_is_what_the_remedy_is_about():
    assert remedy(dispatch(FAST, require="fast")).startswith("Drop the requirement")


def test_the_reference_says_what_would_run_in_another_dtype_unless_it_was_wanted():
    host = replace(DEVICE, device="cpu")
    assert dispatch(FAST, on=host).select(PROBLEM).warnings == (
        "reference is plain torch, not a kernel for toy:t1: slow. "
        "Use --dtype bfloat16: fast runs it then.",
    )
    assert dispatch(FAST, on=host, prefer="reference").select(PROBLEM).warnings == ()
    wanted = dispatch(FAST, on=host, require="reference").select(PROBLEM)
    assert not any("--dtype" in warning for warning in wanted.warnings)
