"""Which kernel runs which scheme on which architecture, as described on any machine."""

from __future__ import annotations

import pytest

from quantdock import Policy, dispatch_for
from quantdock.errors import NoKernelError
from quantdock.kernel import Problem
from quantdock.schemes import parse_scheme
from quantdock.testing import use_plugins

FP8 = (
    "fp8_e4m3[*x*] x fp8_e4m3[*x*]",
    "fp8_e4m3[*x*] x fp8_e4m3[*x*]:dynamic",
    "fp8_e4m3[*x*] x fp8_e4m3[1x*]:dynamic",
    "fp8_e4m3[1x*] x fp8_e4m3[1x*]:dynamic",
    "fp8_e4m3[128x128] x fp8_e4m3[1x128]:dynamic",
    "fp8_e4m3[128x128]:e8m0:ceil x fp8_e4m3[1x128]:e8m0:ceil:dynamic",
    "fp8_e4m3[64x96] x fp8_e4m3[1x96]:dynamic",
    "fp8_e4m3[32x32] x fp8_e4m3[1x32]:dynamic",
    "fp8_e4m3[1x32]:e8m0:ceil x fp8_e4m3[1x32]:e8m0:ceil:dynamic",
)
WITHOUT_FP8, WITH_FP8 = ("sm_80", "sm_86"), ("sm_89", "sm_90", "sm_100", "sm_120")


@pytest.fixture
def select():
    """Return what selects a kernel for a scheme on an architecture, with the plugin alone."""
    with use_plugins("quantdock_cuda.plugin"):

        def choose(arch, text, **policy):
            problem = Problem(scheme=parse_scheme(text), n=256, k=256, dtype="bfloat16")
            return dispatch_for(f"cuda:{arch}", Policy(**policy)).select(problem)

        yield choose


@pytest.mark.parametrize("text", FP8)
@pytest.mark.parametrize("arch", WITH_FP8)
def test_fp8_runs_as_asked_where_there_are_units(select, arch, text):
    chosen = select(arch, text)
    assert (chosen.kernel.name, chosen.substitution) == ("cuda_fp8", None)
    assert str(chosen.scheme) == text and chosen.warnings == ()


@pytest.mark.parametrize("text", FP8)
@pytest.mark.parametrize("arch", WITHOUT_FP8)
def test_fp8_is_weight_only_where_there_are_none(select, arch, text):
    chosen = select(arch, text)
    assert (chosen.kernel.name, chosen.substitution.name) == ("cuda_w8a16", "fp8_weight_only")
    assert chosen.scheme == parse_scheme(text).weight_only()
    with pytest.raises(NoKernelError, match=r"cuda_fp8: cuda:sm_8\d lacks \['fp8_mma'\]"):
        select(arch, text, exact=True)


@pytest.mark.parametrize(
    "text", ["fp8_e4m3[1x*]", "fp8_e4m3[128x128]", "fp8_e5m2[*x*]", "int8[*x*]"]
)
@pytest.mark.parametrize("arch", WITHOUT_FP8 + WITH_FP8)
def test_weights_alone_run_everywhere(select, arch, text):
    assert select(arch, text).kernel.name == "cuda_w8a16"


@pytest.mark.parametrize("text", ["int8[1x*] x int8[1x*]:dynamic", "int8[*x*] x int8[*x*]"])
@pytest.mark.parametrize("arch", WITHOUT_FP8 + WITH_FP8)
def test_int8_runs_everywhere(select, arch, text):
    chosen = select(arch, text)
    assert (chosen.kernel.name, chosen.substitution) == ("cuda_int8", None)


@pytest.mark.parametrize(
    "text, reason",
    [
        ("fp8_e4m3[1x16] x fp8_e4m3[1x16]:dynamic", "groups of 16, no multiple of 32"),
        ("fp8_e4m3fnuz[1x*] x fp8_e4m3fnuz[1x*]:dynamic", "element is fp8_e4m3fnuz"),
    ],
)
def test_what_it_does_not_run_is_told(select, text, reason):
    with pytest.raises(NoKernelError) as caught:
        select("sm_90", text)
    assert reason in str(caught.value)


def test_sm_75_runs_no_kernel(select):
    with pytest.raises(NoKernelError, match=r"cuda_w8a16: cuda:sm_75 lacks \['bf16_mma'\]"):
        select("sm_75", FP8[3])


SMALL = (
    "fp4_e2m1[1x16]:e4m3:second[*x*]",
    "fp4_e2m1[1x32]:e8m0:even",
    "fp6_e2m3[1x32]:e8m0:even",
)


@pytest.mark.parametrize("text", SMALL)
@pytest.mark.parametrize("arch", WITHOUT_FP8 + WITH_FP8)
def test_small_floats_are_widened(select, arch, text):
    chosen = select(arch, text)
    packed = arch == "sm_90" and text.startswith("fp4")
    name = "cuda_fp4a16_wgmma" if packed else "cuda_fp4a16"
    assert (chosen.kernel.name, chosen.substitution) == (name, None)
    inputs = text.replace(":second", ":dynamic:second") if "second" in text else f"{text}:dynamic"
    with_inputs = select(arch, f"{text} x {inputs}")
    assert with_inputs.kernel.name == name
    assert with_inputs.substitution.name == "small_weight_only"
    with pytest.raises(NoKernelError, match="it leaves activations as given"):
        select(arch, f"{text} x {inputs}", exact=True)


def test_float16_and_odd_columns_of_fp4_take_the_plain_kernel():
    with use_plugins("quantdock_cuda.plugin"):
        dispatch = dispatch_for("cuda:sm_90", Policy())
        for dtype, k in (("float16", 256), ("float32", 256), ("bfloat16", 248)):
            problem = Problem(scheme=parse_scheme(SMALL[0]), n=256, k=k, dtype=dtype)
            assert dispatch.select(problem).kernel.name == "cuda_fp4a16"


def test_int4_with_quantized_inputs_is_widened(select):
    chosen = select("sm_90", "int4[1x128] x fp8_e4m3[*x*]")
    assert (chosen.kernel.name, chosen.substitution.name) == ("cuda_w4a16", "small_weight_only")


ALONE = (*FP8, "int8[1x*] x int8[1x*]:dynamic", "fp8_e4m3[1x*]", SMALL[0], "int4[1x128]")


@pytest.mark.parametrize("text", ALONE)
def test_kernels_that_compute_each_row_alone(select, text):
    chosen = select("sm_90", text, batch_invariant=True)
    assert chosen.problem.batch_invariant and chosen.warnings == ()
