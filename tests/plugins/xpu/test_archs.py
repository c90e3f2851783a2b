"""XPU architectures: facts, and what runs instead of fp8 with quantized activations."""

from __future__ import annotations

import pytest

from quantdock import Kernel, SchemeSet, SpecSet
from quantdock.errors import PlatformError
from quantdock.kernel import Problem
from quantdock.registry import dispatch_for
from quantdock.schemes import parse_scheme
from quantdock.testing import make_plugin, use_plugins
from quantdock_xpu.archs import describe

W8A8 = "fp8_e4m3[1x*] x fp8_e4m3[1x*]:dynamic"


@pytest.mark.parametrize("arch", ["bmg", "pvc", "dg2", "lnl", "ptl"])
def test_facts(arch):
    platform = describe(arch)
    assert (str(platform), platform.device) == (f"xpu:{arch}", "xpu")
    assert {"xmx", "bf16_mma", "int8_mma"} <= platform.features
    assert "fp8_mma" not in platform.features


def test_another_word_lists_the_known():
    with pytest.raises(PlatformError, match="known: bmg, pvc, dg2, lnl, ptl"):
        describe("arc")


@pytest.mark.parametrize("arch", ["bmg", "pvc"])
def test_fp8_runs_weight_only(arch):
    kernel = Kernel(name="w8a16", target="acme:K", accepts=SchemeSet(weight=SpecSet()))
    plugin = make_plugin("acme_kernels", get_kernels=lambda platform: (kernel,))
    with use_plugins("quantdock_xpu.plugin", plugin):
        chosen = dispatch_for(f"xpu:{arch}").select(Problem(scheme=parse_scheme(W8A8)))
    assert str(chosen.scheme) == "fp8_e4m3[1x*]"
    assert "no fp8 operands" in chosen.substitution.why
