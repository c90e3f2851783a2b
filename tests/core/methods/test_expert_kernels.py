"""Experts ask for a kernel that runs them whole first, and the plan says who runs them and why."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import quantdock
from model_outputs import logits
from quantdock.errors import NoKernelError
from quantdock.kernels.expert_loop import ExpertLoop
from quantdock.layers import FusedMoE
from quantdock.problem import ExpertProblem, ExpertSet, Problem
from quantdock.schemes import parse_scheme
from quantdock.testing import make_plugin, use_plugins
from quantdock.testing.expert_checks import check_expert_kernel
from tests.fused_experts import FUSED, AllExperts

MIXTURE = "stories260k-mixtral-d128"


@pytest.fixture
def folder(shared, monkeypatch):
    """Return a 16-bit mixture; fp8 at load leaves activations as they are."""
    from quantdock.configs.online import Fp8PerChannelConfig

    monkeypatch.setattr(Fp8PerChannelConfig, "executed", lambda self, scheme: scheme.weight_only())
    return shared / "models" / "bases" / MIXTURE


def plugin_with(*kernels):
    return make_plugin("fused_toy", get_kernels=lambda platform: kernels)


def load(folder, **options):
    return quantdock.load(folder, "fp8_per_channel", device="cpu", **options)


def experts_of(model) -> FusedMoE:
    found = model.model.layers[0].mlp.experts
    assert isinstance(found, FusedMoE)
    return found


def test_a_kernel_that_runs_experts_whole_comes_first(folder):
    loop = load(folder)
    with use_plugins(plugin_with(FUSED)):
        fused = load(folder)
        planned = quantdock.explain(folder, platform="cpu", quantization="fp8_per_channel")
    one, other = experts_of(fused).quant_method, experts_of(loop).quant_method
    assert isinstance(one.kernels.kernel, AllExperts)
    assert isinstance(other.kernels.kernel, ExpertLoop)
    assert "up_codes" in dict(experts_of(fused).named_parameters())
    for plan in (fused.quantdock_plan, planned):
        assert {la.kernel for la in plan.layers if la.kind == "experts"} == {FUSED.name}
        assert FUSED.name not in {la.kernel for la in plan.layers if la.kind == "linear"}
    difference = (logits(fused) - logits(loop)).norm() / logits(loop).norm()
    assert difference < 0.02  # the sums are bfloat16 in another order
    for expert in range(4):
        found = one.restore(experts_of(fused), expert)
        expected = other.restore(experts_of(loop), expert)
        for a, b in zip(found, expected, strict=True):
            assert torch.equal(a.dequantize(), b.dequantize())


@pytest.mark.parametrize(
    ("experts", "reason"),
    [
        ({"activations": frozenset({"gelu"})}, "computes gelu between w13 and w2, not silu"),
        ({"orders": frozenset({"interleaved"})}, "takes w13 as interleaved, not gate_up"),
        ({"dispatches": frozenset({"sorted"})}, "takes tokens as sorted, not topk"),
        ({"most_top_k": 1}, "sends a token to 1 experts at most, not 2"),
        ({"intermediate_multiple": 96}, "I=256 is no multiple of 96"),
    ],
)
def test_a_kernel_for_other_experts_is_passed_over_with_its_reason(folder, experts, reason):
    kernel = replace(FUSED, experts=replace(FUSED.experts, **experts))
    with use_plugins(plugin_with(kernel)):
        model = load(folder)
    layer = next(la for la in model.quantdock_plan.layers if la.kind == "experts")
    assert layer.kernel == "reference"
    said = {r.kernel: r.reasons for r in layer.rejected}
    assert said[FUSED.name] == (reason,)


def test_the_scheme_of_w2_counts_too():
    fp8, int4 = parse_scheme("fp8_e4m3[1x*]"), parse_scheme("int4[1x32]")
    experts = ExpertProblem(w2=int4, activation="silu")
    problem = Problem(scheme=fp8, kind="experts", experts=experts)
    reasons = FUSED.why_not(problem, quantdock.dispatch_for("cpu").platform)
    assert "of w2: weight element is int4, it takes fp8_e4m3" in reasons
    assert problem.changed(lambda _: int4).experts == replace(experts, w2=int4)
    alike = FUSED.why_not(problem.changed(lambda _: int4), quantdock.dispatch_for("cpu").platform)
    assert "weight element is int4, it takes fp8_e4m3" in alike
    assert not any("w2" in reason for reason in alike)  # its scheme is w13's: told once


def test_a_required_kernel_is_the_only_one(folder):
    with use_plugins(plugin_with(FUSED)):
        model = load(folder, require=FUSED.name, ignore=["*.self_attn.*"])
        assert isinstance(experts_of(model).quant_method.kernels.kernel, AllExperts)
        with pytest.raises(NoKernelError, match=FUSED.name):
            load(folder, require=FUSED.name)  # linear layers cannot take it


def test_a_linear_kernel_that_is_preferred_runs_them_one_by_one(folder):
    with use_plugins(plugin_with(FUSED)):
        model = load(folder, prefer="reference")
        other = load(folder, prefer="int4_pack")  # runs none of them
    assert isinstance(experts_of(model).quant_method.kernels.kernel, ExpertLoop)
    assert isinstance(experts_of(other).quant_method.kernels.kernel, AllExperts)
    layer = next(la for la in other.quantdock_plan.layers if la.kind == "experts")
    assert any("int4_pack was not taken" in warning for warning in layer.warnings)


def test_what_is_not_known_is_no_reason():
    unknown = ExpertProblem(w2=parse_scheme("fp8_e4m3[1x*]"))
    assert ExpertSet(activations=frozenset({"silu"}), most_top_k=1).why_not(unknown) == ()


@pytest.mark.parametrize("scheme", ["fp8_e4m3[1x*]", "fp8_e4m3[*x*]"])
def test_the_conformance_suite_checks_it(scheme):
    platform = quantdock.dispatch_for("cpu").platform
    check_expert_kernel(FUSED, parse_scheme(scheme), platform, "float32")


def test_the_conformance_suite_finds_a_wrong_one(monkeypatch):
    right = AllExperts.apply
    monkeypatch.setattr(AllExperts, "apply", lambda self, *given: 1.05 * right(self, *given))
    platform = quantdock.dispatch_for("cpu").platform
    with pytest.raises(AssertionError, match="all_to_all_experts is off by"):
        check_expert_kernel(FUSED, parse_scheme("fp8_e4m3[1x*]"), platform, "float32")
