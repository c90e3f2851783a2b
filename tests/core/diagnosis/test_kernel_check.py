"""Check 7 finds kernels that are required and cannot run, and says why others were not taken."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import ClassVar

import pytest

from examined import noted, statuses, told
from quantdock import Kernel, Platform, PlatformEntry, SchemeSet, SpecSet
from quantdock.diagnosis import doctor
from quantdock.kernel import Problem
from quantdock.testing.plugins import make_plugin, use_plugins
from tests.fused_experts import FUSED
from toy_gptq import GPTQ, integer_llama

ANY = (SchemeSet(weight=SpecSet(), activation=SpecSet()), SchemeSet(weight=SpecSet()))


def test_a_required_kernel_that_cannot_run_is_found(examine):
    report = examine(require="int8_pack")
    assert statuses(report)["kernels"] == "fail"
    text = told(report, "kernels")
    assert "the required kernel int8_pack cannot run fp8_e4m3[128x128]" in text
    assert "int8_pack: weight element is fp8_e4m3, it takes int8" in text
    assert "Drop the requirement (--require, QUANTDOCK_KERNEL)" in text
    assert report["numbers"].status == "skip"
    assert "see check 7" in report["numbers"].summary


def test_a_required_kernel_that_does_not_exist_is_found(examine, monkeypatch):
    monkeypatch.setenv("QUANTDOCK_KERNEL", "marlyn")
    report = examine(quick=True)
    text = told(report, "kernels")
    assert "the required kernel marlyn cannot run" in text
    assert "no kernel of that name; known here: " in text and "int8_pack" in text
    assert "QUANTDOCK_KERNEL=marlyn is set" in noted(report, "kernels")


def test_a_preferred_kernel_that_was_not_taken_is_found(examine):
    report = examine(prefer="int8_pack", quick=True)
    assert statuses(report)["kernels"] == "warn"
    assert "the preferred kernel int8_pack was not taken" in told(report, "kernels")


def test_rejected_kernels_are_noted_with_every_reason(examine):
    report = examine(quick=True)
    assert statuses(report)["kernels"] == "pass"
    text = noted(report, "kernels")
    assert "int8_pack was not taken for fp8_e4m3[128x128] x fp8_e4m3[1x128]:dynamic: " in text
    assert "weight element is fp8_e4m3, it takes int8; weight tile is block" in text
    assert "runs in plain torch" in text
    assert report["kernels"].details["kernels"] == {"reference": 7}


def test_a_kernel_whose_code_is_missing_is_found(examine):
    kernel = Kernel(name="ghost", target="no_such_module:Ghost", accepts=ANY)
    with use_plugins(make_plugin("acme_ghost", get_kernels=lambda platform: (kernel,))):
        report = examine()
    assert statuses(report)["kernels"] == "fail"
    text = told(report, "kernels")
    assert "The kernel ghost was chosen for fp8_e4m3[128x128]" in text
    assert "No module named 'no_such_module'" in text


def test_an_answer_that_a_plugin_failed_to_give_is_found(examine):
    def broken(platform):
        raise OSError("acme driver too old")

    with use_plugins(make_plugin("acme_old", get_kernels=broken)):
        report = examine()
    assert statuses(report)["kernels"] == "warn"
    text = told(report, "kernels")
    assert "An answer of the plugin acme-old 0.0.0 (acme_old) was lost." in text
    assert "raised OSError: acme driver too old" in text


class Told:
    """A kernel that keeps what it is made for."""

    made: ClassVar[list[Problem]] = []

    def __init__(self, problem: Problem) -> None:
        self.made.append(problem)


def only_integers(tensors) -> None:
    tensors.clear()
    tensors.update(integer_llama())


def test_a_kernel_is_made_for_what_it_was_chosen_for(examine):
    """A name that promises a kernel which repacks is part of the problem."""
    kernel = Kernel(name="told", target=f"{__name__}:Told", accepts=ANY, repacks=True)
    with use_plugins(make_plugin("acme_told", get_kernels=lambda platform: (kernel,))):
        examine(only_integers, GPTQ, tile=None, quantization="gptq_marlin")
    assert Told.made and {problem.repacked for problem in Told.made} == {True}


@pytest.mark.parametrize(
    ("target", "status"), [(FUSED.target, "pass"), ("tests.fused_experts:Lost", "fail")]
)
def test_a_kernel_that_runs_experts_whole_needs_its_code_alone(shared, target, status):
    """What it is made for (the function between w13 and w2, say) no header shows."""
    folder = shared / "models" / "bases" / "stories260k-mixtral-d128"
    kernel = replace(FUSED, target=target, accepts=ANY)
    with use_plugins(make_plugin("fused_toy", get_kernels=lambda platform: (kernel,))):
        report = doctor(folder, platform="cpu", quantization="mxfp4", layers="none of them")
    assert f"{FUSED.name} (60 layers)" in report["kernels"].summary
    assert report["kernels"].status == status


def test_a_kernel_on_another_platform_is_named(examine, monkeypatch):
    fast = Kernel(name="acme_mm", target="acme:MM", accepts=ANY)
    entry = PlatformEntry(
        name="acme", rank=-1, probe="acme_device:probe", describe="acme_device:describe",
        archs=("a1",),
    )  # fmt: skip
    device = make_plugin(
        "acme_device",
        get_platforms=lambda: (entry,),
        get_kernels=lambda platform: (fast,) if platform.name == "acme" else (),
        probe=lambda index: Platform(name="acme", arch="a1", device="cpu"),
        describe=lambda arch: Platform(name="acme", arch=arch, device="acme"),
    )
    monkeypatch.setitem(sys.modules, "acme_device", device)
    with use_plugins(device):
        report = examine(quick=True)
    assert statuses(report)["kernels"] == "warn", "it is in this machine"
    assert "acme:a1 has acme_mm" in told(report, "kernels")


def probe_tuned(index):
    return Platform(name="tunable", arch="t1", device="cpu")


TUNABLE = PlatformEntry(
    name="tunable",
    rank=200,
    probe=f"{__name__}:probe_tuned",
    describe=f"{__name__}:probe_tuned",
    archs=("t1",),
)


def test_what_was_measured_of_this_device_is_noted(examine):
    plugin = make_plugin(
        "acme_tuned",
        get_platforms=lambda: (TUNABLE,),
        get_tuner=lambda platform: "toy_tuner:ToyTuner",
    )
    with use_plugins(plugin):
        report = examine(platform="tunable")
    assert "plans were made on [tunable:t1]" in noted(report, "kernels")


def test_a_tuner_that_cannot_be_used_is_noted(examine):
    plugin = make_plugin(
        "acme_tuned", get_platforms=lambda: (TUNABLE,), get_tuner=lambda platform: "no_such:Tuner"
    )
    with use_plugins(plugin):
        report = examine(platform="tunable")
    assert "The tuner of tunable:t1 cannot be used. no_such:Tuner" in noted(report, "kernels")
