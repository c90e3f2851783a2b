"""One layer's plan, on a device that tests make up."""

from __future__ import annotations

from dataclasses import replace

import pytest

from quantdock.kernel import Policy
from quantdock.plan.layer import memory_bytes, plan_layer
from quantdock.platform import Platform
from quantdock.schemes import LayerFacts, parse_scheme

UP = LayerFacts(prefix="l.0.up_proj")
W8A8 = "fp8_e4m3[1x*] x fp8_e4m3[1x*]:dynamic"


def reasons(plan):
    return {rejection.kernel: rejection.reasons for rejection in plan.rejected}


def test_a_substitution_is_shown_with_why_and_what_it_costs(config, make_dispatch):
    plan = plan_layer(config, UP, 64, 128, "bfloat16", make_dispatch())
    assert (plan.decision, plan.scheme, plan.kernel) == ("quantized", W8A8, "fast")
    assert (plan.because, plan.source) == ("all are", "the block")
    swap = plan.substitution
    assert (swap.source, swap.target) == (W8A8, "fp8_e4m3[1x*]")
    assert (swap.why, swap.accuracy) == ("no fp8 cores", "as good")
    assert reasons(plan) == {"reference": ("can run it; fast comes first",)}
    assert plan.bytes_memory == 64 * 128 + 64 * 4


def test_a_name_that_promises_its_scheme_is_not_substituted(config, make_dispatch):
    decision = replace(config.scheme_for(UP), promised=True)
    choices, dispatch = {}, make_dispatch()
    told = {"decision": decision, "choices": choices}
    plan = plan_layer(config, UP, 64, 128, "bfloat16", dispatch, **told)
    assert (plan.promised, plan.kernel, plan.substitution) == (True, None, None)
    assert "it leaves activations as given" in reasons(plan)["fast"][0]
    beside = plan_layer(config, UP, 64, 128, "bfloat16", dispatch, choices=choices)
    assert (beside.promised, beside.kernel) == (False, "fast")


def test_no_kernel_is_no_exception_and_keeps_every_reason(config, make_dispatch):
    plan = plan_layer(config, UP, 64, 100, "bfloat16", make_dispatch())
    assert plan.lacks_kernel and plan.decision == "quantized"
    assert plan.substitution.target == "fp8_e4m3[1x*]"
    assert reasons(plan)["fast"] == ("K=100 is no multiple of 16",)
    assert "very slow on an accelerator" in reasons(plan)["reference"][0]
    assert "--require reference" in plan.kernel_note


def test_a_device_without_kernels_says_so(config, make_dispatch):
    plan = plan_layer(config, UP, 64, 100, "bfloat16", make_dispatch(kernels=()))
    assert reasons(plan) == {"": ("no installed plugin offers a kernel for toy",)}


def test_the_policy_is_heard(config, make_dispatch):
    dispatch = make_dispatch(policy=Policy(exact=True, allow_reference=True))
    plan = plan_layer(config, UP, 64, 128, "bfloat16", dispatch)
    assert (plan.kernel, plan.kernel_note, plan.substitution) == ("reference", "plain torch", None)


def test_a_required_kernel_that_cannot_run_gives_its_reasons_once(config, make_dispatch):
    dispatch = make_dispatch(policy=Policy(require="fast", exact=True))
    plan = plan_layer(config, UP, 64, 100, "bfloat16", dispatch)
    assert plan.kernel is None
    assert [r.kernel for r in plan.rejected] == ["fast"]
    assert "Drop the requirement" in plan.kernel_note


def test_a_preference_that_was_not_taken_is_a_warning(config, make_dispatch):
    dispatch = make_dispatch(policy=Policy(prefer="other"))
    plan = plan_layer(config, UP, 64, 128, "bfloat16", dispatch)
    assert plan.kernel == "fast" and "preferred kernel other was not taken" in plan.warnings[0]


@pytest.mark.parametrize(
    ("facts", "decision", "because"),
    [
        (LayerFacts(prefix="keep.up"), "unquantized", "kept"),
        (LayerFacts(prefix="lm_head", kind="head"), "unquantized", "kept"),
        (LayerFacts(prefix="bad.up"), "error", "it is bad"),
    ],
)
def test_layers_without_a_scheme(config, make_dispatch, facts, decision, because):
    plan = plan_layer(config, facts, 64, 128, "bfloat16", make_dispatch(), has_bias=True)
    assert (plan.decision, plan.because, plan.scheme, plan.kernel) == (
        decision,
        because,
        None,
        None,
    )
    assert not plan.lacks_kernel
    assert plan.bytes_memory == 2 * (64 * 128 + 64)


def test_each_matrix_of_an_expert_meets_the_kernels_of_linear_layers(config, make_dispatch):
    facts = LayerFacts(prefix="experts.0.up", kind="experts")
    plan = plan_layer(config, facts, 64, 128, "bfloat16", make_dispatch())
    linear = plan_layer(config, UP, 64, 128, "bfloat16", make_dispatch())
    assert (plan.kind, plan.kernel, plan.scheme) == ("experts", linear.kernel, linear.scheme)
    assert plan.kernel is not None


def test_unknown_sizes_stay_unknown(config, make_dispatch):
    plan = plan_layer(config, UP, None, None, "bfloat16", make_dispatch())
    assert (plan.kernel, plan.n, plan.bytes_memory) == ("fast", None, None)


def test_equal_problems_are_asked_once(config, make_dispatch):
    choices = {}
    for index in range(3):
        facts = LayerFacts(prefix=f"l.{index}.up_proj")
        plan_layer(config, facts, 64, 128, "bfloat16", make_dispatch(), choices=choices)
    assert len(choices) == 1


def test_a_dtype_that_no_kernel_takes(config, make_dispatch):
    cpu = Platform(name="toy", arch="t2", device="cpu")
    plan = plan_layer(config, UP, 64, 128, "float32", make_dispatch(platform=cpu))
    assert plan.kernel == "reference"
    assert "lacks ['mma']" in " ".join(reasons(plan)["fast"])


@pytest.mark.parametrize(
    ("scheme", "expected"),
    [
        ("fp8_e4m3[*x*]", 300 * 200 + 4),
        ("fp8_e4m3[128x128]", 300 * 200 + 3 * 2 * 4),
        ("fp8_e4m3[1x32]:e8m0:floor", 300 * 200 + 300 * 7 * 4),
        ("uint4[1x100]:bf16:zero", 300 * 100 + 600 * 5),
        ("int2[1x*]", 300 * 50 + 300 * 4),
        ("int3[1x*]", 300 * 100 + 300 * 4),
        ("int6[1x*]", 300 * 200 + 300 * 4),
        ("int4[1x64]:act-order + input multiplier", 300 * 100 + 300 * 4 * 4 + 200 * 8),
    ],
)
def test_memory_is_codes_scales_and_zero_points(scheme, expected):
    assert memory_bytes(parse_scheme(scheme), 300, 200, "bfloat16") == expected


def test_fused_experts_count_once_each(config, make_dispatch):
    facts = LayerFacts(prefix="keep.experts.up", kind="experts")
    plan = plan_layer(config, facts, 64, 128, "bfloat16", make_dispatch(), copies=4)
    assert (plan.copies, plan.bytes_memory) == (4, 4 * 64 * 128 * 2)


def test_a_required_kernel_that_nobody_has_is_told_in_one_piece(config, make_dispatch):
    dispatch = make_dispatch(policy=Policy(require="nothing"))
    plan = plan_layer(config, UP, 64, 128, "bfloat16", dispatch)
    (told,) = reasons(plan)["nothing"]
    assert told.startswith("no kernel of that name; known here: fast")
