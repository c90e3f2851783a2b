"""Choosing a kernel: every way it can end, every reason, and the texts that people read."""

from __future__ import annotations

from dataclasses import replace

import pytest

from quantdock.errors import NoKernelError
from quantdock.kernel import (
    Kernel,
    Policy,
    Problem,
    Rejection,
    Selection,
    Substitution,
    select_kernel,
)
from quantdock.platform import Platform
from quantdock.problem import ExpertProblem
from quantdock.schemes import SchemeSet, SpecSet, parse_scheme

W8A8 = parse_scheme("fp8_e4m3[1x*] x fp8_e4m3[1x*]:dynamic")
W8A16 = W8A8.weight_only()
PROBLEM = Problem(scheme=W8A8, n=256, k=512, shards=(128, 128), dtype="bfloat16")

CPU = Platform(name="cpu", arch="generic", device="cpu")
NEW = Platform(name="demo", arch="two", device="demo", features=frozenset({"mma", "fp8_mma"}))
OLD = Platform(name="demo", arch="one", device="demo", features=frozenset({"mma"}))

FP8 = SpecSet(elements=frozenset({"fp8_e4m3"}))
EXACT = Kernel(
    name="exact",
    target="demo:Exact",
    accepts=SchemeSet(weight=FP8, activation=FP8),
    requires=frozenset({"fp8_mma"}),
    k_multiple=128,
)
SECOND = replace(EXACT, name="second", k_multiple=1)
WEIGHT_ONLY = Kernel(
    name="weight_only",
    target="demo:WeightOnly",
    accepts=SchemeSet(weight=FP8),
    requires=frozenset({"mma"}),
    n_multiple=64,
)
REFERENCE = Kernel(
    name="reference",
    target="demo:Reference",
    accepts=(SchemeSet(weight=SpecSet(), activation=SpecSet()), SchemeSet(weight=SpecSet())),
    is_reference=True,
    note="two to three times the time of an unquantized layer",
)
NO_WISHES = Policy()
KERNELS = (EXACT, SECOND, WEIGHT_ONLY, REFERENCE)
SWAP = Substitution(
    name="fp8_weight_only",
    source=SchemeSet(weight=FP8, activation=FP8),
    change="weight_only",
    needs=frozenset({"mma"}),
    lacks=frozenset({"fp8_mma"}),
    why="no fp8 instructions",
    accuracy="no activation error",
)


def choose(
    platform: Platform,
    policy: Policy = NO_WISHES,
    problem: Problem = PROBLEM,
    kernels: tuple[Kernel, ...] = KERNELS,
) -> Selection:
    return select_kernel(problem, platform, kernels, (SWAP,), policy)


def test_the_first_exact_kernel_wins_and_the_others_are_accounted_for() -> None:
    selection = choose(NEW)
    assert selection.kernel is EXACT
    assert selection.scheme == W8A8
    assert selection.substitution is None
    assert selection.warnings == ()
    assert selection.rejected == (
        Rejection(
            kernel="weight_only",
            reasons=(f"it leaves activations as given; this scheme has {W8A8.activation}",),
        ),
        Rejection(kernel="second", reasons=("can run it; exact comes first",)),
        Rejection(kernel="reference", reasons=("can run it; exact comes first",)),
    )


def test_the_next_exact_kernel_takes_what_the_first_cannot() -> None:
    selection = choose(NEW, problem=replace(PROBLEM, k=500))
    assert selection.kernel is SECOND
    assert selection.rejected[0] == Rejection(
        kernel="exact", reasons=("K=500 is no multiple of 128",)
    )


def test_a_declared_substitution_comes_before_the_reference() -> None:
    selection = choose(OLD)
    assert selection.kernel is WEIGHT_ONLY
    assert selection.scheme == W8A16
    assert selection.substitution is SWAP
    assert selection.warnings == ()


def test_a_substitution_whose_kernel_cannot_run_ends_at_the_reference_of_its_scheme() -> None:
    with pytest.raises(NoKernelError, match=r"can run fp8_e4m3\[1x\*\] with N=250") as caught:
        choose(OLD, problem=replace(PROBLEM, n=250))
    assert "weight_only: N=250 is no multiple of 64" in str(caught.value)
    allowed = choose(OLD, Policy(allow_reference=True), replace(PROBLEM, n=250))
    assert allowed.kernel is REFERENCE
    assert allowed.scheme == W8A16
    assert allowed.substitution is SWAP


def test_a_substitution_may_wait_for_a_kernel() -> None:
    """Without one for its result the scheme stays as asked, and the next declared one counts."""
    waiting = replace(SWAP, name="waiting", needs_kernel=True)
    lone = select_kernel(PROBLEM, CPU, (REFERENCE,), (replace(waiting, needs=frozenset()),))
    assert (lone.scheme, lone.substitution) == (W8A8, None)
    chosen = select_kernel(PROBLEM, OLD, KERNELS, (waiting, SWAP))
    assert (chosen.kernel, chosen.substitution) == (WEIGHT_ONLY, waiting)
    narrow = replace(PROBLEM, n=100, shards=())
    policy = Policy(allow_reference=True)
    kept = select_kernel(narrow, OLD, KERNELS, (waiting, SWAP), policy)
    assert (kept.kernel, kept.substitution) == (REFERENCE, SWAP)


def test_exact_forbids_the_substitution() -> None:
    with pytest.raises(NoKernelError) as caught:
        choose(OLD, Policy(exact=True))
    assert "exact: demo:one lacks ['fp8_mma']" in str(caught.value)
    allowed = choose(OLD, Policy(exact=True, allow_reference=True))
    assert allowed.kernel is REFERENCE
    assert allowed.scheme == W8A8
    assert allowed.substitution is None


def test_a_substitution_of_another_platform_does_not_apply() -> None:
    assert not SWAP.applies(W8A8, NEW)  # has what the row says is missing
    assert not SWAP.applies(W8A8, CPU)  # lacks what the row needs
    assert not SWAP.applies(W8A16, OLD)  # another scheme
    assert SWAP.applies(W8A8, OLD)
    assert replace(SWAP, lacks=frozenset()).applies(W8A8, NEW)
    assert SWAP.result(W8A8) == W8A16


def test_a_cpu_takes_the_reference_with_a_warning_and_an_estimate() -> None:
    selection = choose(CPU)
    assert selection.kernel is REFERENCE
    assert selection.scheme == W8A8
    assert selection.warnings == (
        "reference is plain torch, not a kernel for cpu:generic: "
        "two to three times the time of an unquantized layer",
    )


def test_an_accelerator_refuses_the_reference_and_says_how_to_allow_it() -> None:
    with pytest.raises(NoKernelError) as caught:
        choose(OLD, Policy(exact=True), replace(PROBLEM, k=500))
    assert str(caught.value) == "\n".join(
        (
            "No kernel on demo:one can run fp8_e4m3[1x*] x fp8_e4m3[1x*]:dynamic "
            "with N=256, K=500.",
            "  exact: demo:one lacks ['fp8_mma']; K=500 is no multiple of 128",
            "  second: demo:one lacks ['fp8_mma']",
            "  weight_only: it leaves activations as given; this scheme has fp8_e4m3[1x*]:dynamic",
            "  reference: can run it, but plain torch is very slow on an accelerator",
            "Set QUANTDOCK_KERNEL=reference (or --require reference) to run the slow path.",
        )
    )
    assert caught.value.problem.k == 500
    assert [r.kernel for r in caught.value.rejected] == ["exact", "second", "weight_only"]


def test_what_speaks_against_the_scheme_itself_is_told_beside_its_substitute() -> None:
    with pytest.raises(NoKernelError) as caught:
        choose(OLD, problem=replace(PROBLEM, k=500), kernels=(EXACT, REFERENCE))
    text = str(caught.value)
    assert text.startswith("No kernel on demo:one can run fp8_e4m3[1x*] with N=256, K=500.")
    assert (
        "  exact for fp8_e4m3[1x*] x fp8_e4m3[1x*]:dynamic itself: demo:one lacks ['fp8_mma']; "
        "K=500 is no multiple of 128\n"
    ) in text
    assert [r.kernel for r in caught.value.rejected] == ["exact"]


def test_nothing_at_all_names_the_missing_plugin() -> None:
    with pytest.raises(NoKernelError) as caught:
        choose(OLD, kernels=())
    assert "no installed plugin offers a kernel for demo" in str(caught.value)
    assert str(caught.value).endswith("or install a plugin that brings a kernel.")


def test_a_cpu_without_any_kernel_fails_too() -> None:
    with pytest.raises(
        NoKernelError, match=r"weight_only: it leaves activations as given"
    ) as caught:
        choose(CPU, kernels=(WEIGHT_ONLY,))
    assert "cpu:generic lacks ['mma']" in str(caught.value)


def test_a_preferred_kernel_is_taken_where_it_can_run() -> None:
    selection = choose(NEW, Policy(prefer="second"))
    assert selection.kernel is SECOND
    assert selection.warnings == ()
    assert selection.rejected[-2].reasons == ("can run it; second is what the user names",)


def test_the_preferred_reference_needs_no_permission_and_no_warning() -> None:
    selection = choose(NEW, Policy(prefer="reference"))
    assert selection.kernel is REFERENCE
    assert selection.warnings == ()


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("exact", "demo:one lacks ['fp8_mma']"),
        (
            "nothing",
            "no kernel of that name; known here: exact, reference, second, weight_only",
        ),
        (
            "wieght_only",
            "no kernel of that name (did you mean weight_only?); known here: exact, reference, "
            "second, weight_only",
        ),
    ],
)
def test_a_preference_that_cannot_be_met_warns(name: str, why: str) -> None:
    selection = choose(OLD, Policy(prefer=name))
    assert selection.kernel is WEIGHT_ONLY
    assert selection.warnings == (f"preferred kernel {name} was not taken: {why}",)


def test_a_required_kernel_is_taken_even_if_it_is_the_reference() -> None:
    for platform in (NEW, CPU):
        selection = choose(platform, Policy(require="reference"))
        assert selection.kernel is REFERENCE
        assert selection.scheme == W8A8
        assert selection.warnings == ()


@pytest.mark.parametrize("how", ["require", "prefer"])
def test_a_kernel_that_is_named_runs_what_the_platform_runs_without_it(how: str) -> None:
    """A layer means the same whatever runs it; --exact gives the scheme as asked."""
    named = Policy(**{how: "reference"})
    for kernels in (KERNELS, (EXACT, REFERENCE)):
        selection = choose(OLD, named, kernels=kernels)
        assert (selection.kernel, selection.scheme) == (REFERENCE, W8A16)
        assert (selection.substitution, selection.warnings) == (SWAP, ())
    exact = choose(OLD, replace(named, exact=True))
    assert (exact.kernel, exact.scheme, exact.substitution) == (REFERENCE, W8A8, None)
    promised = choose(OLD, named, replace(PROBLEM, promised=True))
    assert (promised.scheme, promised.substitution) == (W8A8, None)


def test_a_kernel_that_is_named_runs_what_it_can_of_the_two() -> None:
    always = replace(SWAP, lacks=frozenset())
    policy = Policy(require="weight_only")
    other = select_kernel(PROBLEM, NEW, KERNELS, (always,), policy)
    assert (other.kernel, other.substitution) == (WEIGHT_ONLY, always)
    lone = replace(EXACT, requires=frozenset())
    own = select_kernel(PROBLEM, OLD, (WEIGHT_ONLY, lone), (always,), Policy(require="exact"))
    assert (own.kernel, own.substitution) == (lone, None)
    narrow = replace(lone, k_multiple=1, is_reference=True)
    policy = Policy(require="exact")
    last = select_kernel(PROBLEM, OLD, (WEIGHT_ONLY, narrow), (SWAP,), policy)
    assert (last.kernel, last.scheme, last.substitution) == (narrow, W8A8, None)


def test_a_required_kernel_may_need_the_substitution() -> None:
    selection = choose(OLD, Policy(require="weight_only"))
    assert selection.kernel is WEIGHT_ONLY
    assert selection.substitution is SWAP
    assert selection.scheme == W8A16
    with pytest.raises(NoKernelError, match="required kernel weight_only cannot run"):
        choose(OLD, Policy(require="weight_only", exact=True))


def test_a_preferred_kernel_may_need_the_substitution() -> None:
    selection = choose(OLD, Policy(prefer="weight_only"))
    assert (selection.kernel, selection.substitution) == (WEIGHT_ONLY, SWAP)
    assert selection.warnings == ()


def test_a_preference_beside_a_requirement_is_told_to_have_no_say() -> None:
    both = choose(NEW, Policy(require="second", prefer="exact"))
    assert both.kernel is SECOND
    assert both.warnings == ("preferred kernel exact has no say: second is required",)
    assert choose(NEW, Policy(require="second", prefer="second")).warnings == ()


def test_a_requirement_that_cannot_be_met_fails_with_its_reasons() -> None:
    with pytest.raises(NoKernelError) as caught:
        choose(OLD, Policy(require="exact"), replace(PROBLEM, n=None, k=500))
    assert str(caught.value) == "\n".join(
        (
            "The required kernel exact cannot run fp8_e4m3[1x*] x fp8_e4m3[1x*]:dynamic "
            "with N=?, K=500 on demo:one.",
            "  demo:one lacks ['fp8_mma']",
            "  K=500 is no multiple of 128",
            "Drop the requirement (--require, QUANTDOCK_KERNEL), or name another kernel.",
        )
    )


def test_a_required_kernel_that_nobody_offers_lists_those_that_exist() -> None:
    with pytest.raises(NoKernelError) as caught:
        choose(OLD, Policy(require="marlin"))
    told = "no kernel of that name; known here: exact, reference, second, weight_only"
    assert f"  {told}\n" in str(caught.value)
    assert Rejection(kernel="marlin", reasons=(told,)) in caught.value.facts["rejected"]


def test_a_kernel_names_every_limit_at_once() -> None:
    kernel = replace(
        EXACT, n_multiple=3, dtypes=frozenset({"float16", "bfloat16"}), kinds=frozenset({"experts"})
    )
    problem = replace(PROBLEM, scheme=parse_scheme("int8[1x*]"), k=500, dtype="float32")
    assert kernel.why_not(problem, OLD) == (
        "weight element is int8, it takes fp8_e4m3",
        "it quantizes activations; this scheme leaves them as given",
        "runs experts layers only",
        "demo:one lacks ['fp8_mma']",
        "N=256 is no multiple of 3",
        "K=500 is no multiple of 128",
        "takes bfloat16, float16 activations, not float32",
    )


def test_shapes_that_are_not_known_yet_reject_nothing() -> None:
    problem = Problem(scheme=W8A8)
    assert EXACT.why_not(problem, NEW) == ()
    assert problem.shape == "N=?, K=?"


def test_the_nearest_of_several_sets_gives_the_reasons() -> None:
    kernel = replace(
        EXACT,
        accepts=(
            SchemeSet(weight=SpecSet(elements=frozenset({"int8"})), activation=None),
            SchemeSet(weight=FP8, activation=SpecSet(dynamic=False)),
        ),
    )
    assert kernel.why_not(PROBLEM, NEW) == ("activation scale is dynamic, it takes static",)
    assert replace(kernel, accepts=()).why_not(PROBLEM, NEW) == ("accepts no scheme",)


REPACKS = replace(REFERENCE, name="repacks", is_reference=False, repacks=True)


@pytest.mark.parametrize(
    ("repacked", "chosen", "reason"),
    [
        (None, "repacks", "can run it; repacks comes first"),
        (True, "repacks", "leaves codes as they are; one that repacks them is required"),
        (
            False,
            "reference",
            "repacks codes, which the method that was asked for leaves as they are",
        ),
    ],
)
def test_kernels_that_repack_are_taken_required_or_left_out(repacked, chosen, reason) -> None:
    problem = replace(PROBLEM, repacked=repacked)
    selection = choose(CPU, problem=problem, kernels=(REPACKS, REFERENCE))
    assert selection.kernel.name == chosen
    assert [r.reasons for r in selection.rejected] == [(reason,)]


def test_a_kernel_that_sorts_columns_takes_no_unequal_groups():
    ordered = parse_scheme("int4[1x64]:act-order")
    weight = SpecSet(act_order=None)
    kernel = Kernel(
        name="sorts", target="demo:Sorts", accepts=SchemeSet(weight=weight), sorts_columns=True
    )
    problem = Problem(scheme=ordered, n=64, k=128)
    why = ("sorts columns by group, and groups are of unequal size",)
    assert [
        kernel.why_not(replace(problem, equal_groups=equal), CPU) for equal in (None, True, False)
    ] == [(), (), why]
    experts = ExpertProblem(w2=ordered, equal_groups=False)
    assert kernel.why_not(replace(problem, experts=experts), CPU) == why
    indexed = replace(kernel, sorts_columns=False)
    assert indexed.why_not(replace(problem, equal_groups=False), CPU) == ()
