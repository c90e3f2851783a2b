"""fp8 without fp8 tensor cores runs weight-only, visibly and refusably."""

from __future__ import annotations

import pytest

from quantdock import Kernel, Policy, SchemeSet, SpecSet
from quantdock.kernel import Problem
from quantdock.registry import dispatch_for
from quantdock.schemes import parse_scheme
from quantdock.testing import make_plugin, use_plugins

SCHEMES = [
    "fp8_e4m3[*x*] x fp8_e4m3[*x*]",
    "fp8_e4m3[*x*] x fp8_e4m3[1x*]:dynamic",
    "fp8_e4m3[1x*] x fp8_e4m3[1x*]:dynamic",
    "fp8_e4m3[128x128] x fp8_e4m3[1x128]:dynamic",
    "fp8_e4m3[1x32]:e8m0:ceil x fp8_e4m3[1x32]:e8m0:ceil:dynamic",
]
ANY = SpecSet()
WEIGHT_ONLY = Kernel(name="w8a16", target="acme:K", accepts=SchemeSet(weight=ANY))
NATIVE = Kernel(
    name="w8a8",
    target="acme:K",
    accepts=SchemeSet(weight=ANY, activation=ANY),
    requires=frozenset({"fp8_mma"}),
)


@pytest.fixture
def kernels():
    """A plugin with one kernel of each kind, beside the CUDA plugin."""
    plugin = make_plugin("acme_kernels", get_kernels=lambda platform: (NATIVE, WEIGHT_ONLY))
    with use_plugins("quantdock_cuda.plugin", plugin):
        yield


@pytest.mark.parametrize("text", SCHEMES)
@pytest.mark.parametrize("arch", ["sm_75", "sm_80", "sm_86"])
def test_below_fp8_tensor_cores_it_is_weight_only(kernels, arch, text):
    problem = Problem(scheme=parse_scheme(text), n=256, k=256)
    chosen = dispatch_for(f"cuda:{arch}").select(problem)
    assert chosen.kernel.name == "w8a16"
    assert chosen.scheme == problem.scheme.weight_only()
    assert chosen.substitution.name == "fp8_weight_only"
    assert "no fp8 tensor cores" in chosen.substitution.why


@pytest.mark.parametrize("text", SCHEMES)
@pytest.mark.parametrize("arch", ["sm_89", "sm_90", "sm_100", "sm_120", "sm_121"])
def test_with_them_it_stays_as_asked(kernels, arch, text):
    problem = Problem(scheme=parse_scheme(text), n=256, k=256)
    chosen = dispatch_for(f"cuda:{arch}").select(problem)
    assert (chosen.kernel.name, chosen.substitution) == ("w8a8", None)
    assert chosen.scheme == problem.scheme


def test_exact_refuses_the_substitution(kernels):
    from quantdock.errors import NoKernelError

    problem = Problem(scheme=parse_scheme(SCHEMES[2]), n=256, k=256)
    with pytest.raises(NoKernelError, match=r"w8a8: cuda:sm_80 lacks \['fp8_mma'\]"):
        dispatch_for("cuda:sm_80", Policy(exact=True)).select(problem)


def test_integer_schemes_are_left_alone(kernels):
    rows = dispatch_for("cuda:sm_80").substitutions
    scheme = parse_scheme("int8[1x*] x int8[1x*]:dynamic")
    assert not any(row.applies(scheme, dispatch_for("cuda:sm_80").platform) for row in rows)
