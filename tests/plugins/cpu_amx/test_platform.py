"""x86 CPUs: the probe, the closed set of AMX, the step down, and bfloat16 activations."""

from __future__ import annotations

from dataclasses import replace

import pytest

from quantdock import Absent, Kernel, Platform, SchemeSet, SpecSet, get_platform
from quantdock.errors import MethodLookupError, MethodNotYetError, PlatformError
from quantdock.kernel import Problem
from quantdock.registry import cpu, dispatch_for, resolve_method
from quantdock.schemes import parse_scheme
from quantdock.testing import make_plugin, use_plugins
from quantdock_cpu_amx import probe as module
from quantdock_cpu_amx.archs import AMX_METHODS, describe

AMX = cpu.ARCHS["amx"]
W8A8 = "fp8_e4m3[1x*] x fp8_e4m3[1x*]:dynamic"
SERVED = ("awq", "compressed-tensors", "fp8", "gptq", "modelopt", "quark", "w8a8_int8")


@pytest.fixture
def pose(monkeypatch):
    """Return a function that poses as a processor with these features; the plugin is loaded."""
    monkeypatch.delenv("QUANTDOCK_PLATFORM", raising=False)

    def make(features, tiles=True):
        monkeypatch.setattr(cpu, "read_features", lambda: frozenset(features))
        monkeypatch.setattr(module, "request_tiles", lambda: tiles)

    with use_plugins("quantdock_cpu_amx.plugin"):
        yield make


def test_described_architectures():
    amx, avx512, avx2 = (describe(arch) for arch in ("amx", "avx512", "avx2"))
    assert {"amx_bf16", "amx_int8", "avx512_vnni"} <= amx.features
    assert amx.builtin_methods == AMX_METHODS
    assert avx512.builtin_methods is None and avx2.builtin_methods is None
    assert (amx.dtypes[0], avx2.dtypes[0]) == ("bfloat16", "float32")
    assert not amx.is_accelerator
    with pytest.raises(PlatformError, match="known: amx, avx512, avx2"):
        describe("sse2")


def test_a_processor_with_amx_is_found(pose):
    pose(AMX)
    assert str(get_platform()) == "cpu_amx:amx"
    assert "amx_int8" in get_platform().features


@pytest.mark.parametrize(
    ("features", "tiles", "reason"),
    [
        (AMX, False, "the system does not let this process use AMX tiles"),
        (cpu.ARCHS["avx512"], True, "this processor has no AMX (the flag amx_tile is not there)"),
        (cpu.ARCHS["avx2"], True, "this processor has no AMX (the flag amx_tile is not there)"),
    ],
)
def test_processors_without_amx_are_left_to_the_core(pose, features, tiles, reason):
    pose(features, tiles)
    assert module.probe() == Absent(reason=reason)
    assert get_platform().name == "cpu"


def test_asking_for_tiles_never_fails():
    assert module.request_tiles() in (True, False)


def test_the_closed_set_is_an_error_for_an_explicit_platform(pose):
    with pytest.raises(MethodLookupError) as caught:
        resolve_method("mxfp8", "cpu_amx:amx")
    runs = caught.value.runnable
    assert set(SERVED) <= set(runs) <= AMX_METHODS
    elsewhere = ", ".join(f"{name} (cpu)" for name in sorted(caught.value.elsewhere))
    assert "mxfp8 (cpu)" in elsewhere
    assert str(caught.value) == (
        "cpu_amx:amx does not run mxfp8.\n"
        f"  runs on cpu_amx:amx: {', '.join(sorted(runs))}\n"
        f"  runs on other platforms only: {elsewhere}\n"
        "Choose platform cpu (--platform cpu, or QUANTDOCK_PLATFORM=cpu), or a method that "
        "cpu_amx:amx runs."
    )


def test_the_list_never_has_the_name_that_was_refused(pose):
    with pytest.raises(MethodNotYetError) as caught:
        resolve_method("gptq_marlin_24", "cpu_amx:amx")
    runs = ", ".join(sorted(caught.value.runnable))
    assert f"runs on cpu_amx:amx: {runs}\n" in str(caught.value)
    assert "gptq_marlin_24" not in (*caught.value.runnable, *caught.value.elsewhere)


@pytest.mark.parametrize("name", SERVED)
def test_names_of_the_set_are_the_cores(pose, name):
    found = resolve_method(name, "cpu_amx:amx")
    assert str(found.platform) == "cpu_amx:amx"
    assert found.config.__module__.startswith("quantdock.configs.")


def test_an_automatic_choice_steps_down_to_the_plain_cpu(pose):
    pose(AMX)
    assert resolve_method("fp8").platform.name == "cpu_amx"
    found = resolve_method("mxfp8")
    assert found.platform.name == "cpu"
    assert found.notes == ("cpu_amx:amx does not run mxfp8; stepped down to cpu:amx",)


def test_without_amx_nothing_is_closed():
    assert str(resolve_method("mxfp8", "cpu_amx:avx2").platform) == "cpu_amx:avx2"


def test_with_amx_fp8_keeps_its_activations():
    kernel = Kernel(name="amx_w8a16", target="acme:K", accepts=SchemeSet(weight=SpecSet()))
    plugin = make_plugin("acme_kernels", get_kernels=lambda platform: (kernel,))
    with use_plugins("quantdock_cpu_amx.plugin", plugin):
        problem = Problem(scheme=parse_scheme(W8A8))
        chosen = dispatch_for("cpu_amx:amx").select(problem)
        assert (chosen.kernel.name, str(chosen.scheme)) == ("amx_w8a16", "fp8_e4m3[1x*]")
        assert "activations stay bfloat16" in chosen.substitution.why
        exact = dispatch_for("cpu_amx:amx").select(replace(problem, promised=True))
        assert (exact.kernel.name, str(exact.scheme)) == ("reference", W8A8)
        without = dispatch_for("cpu_amx:avx2").select(problem)
        assert without.substitution is None


def test_fp8_tiles_of_newer_processors_need_no_substitution():
    newer = Platform(name="cpu_amx", arch="amx", device="cpu", features=AMX | {"amx_fp8"})
    with use_plugins("quantdock_cpu_amx.plugin"):
        rows = dispatch_for(newer).substitutions
    assert not any(row.applies(parse_scheme(W8A8), newer) for row in rows)
