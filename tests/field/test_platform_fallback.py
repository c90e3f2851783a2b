"""Devices of the field: S10, S23, S24 - what runs where the hardware lacks a format."""

from __future__ import annotations

import pytest
import torch

import quantdock
from quantdock import Kernel, Policy, SchemeSet, SpecSet
from quantdock.cli.app import run as run_cli
from quantdock.errors import PlatformError
from quantdock.registry import cpu
from quantdock.testing import make_plugin, use_plugins
from tests.sparse_files import LLAMA_CONFIG, deepseek, write_checkpoint
from toy_llama import BLOCK, LINEARS, STATIC, TENSOR, Q, llama, load, run, with_input_scales, write

FP8 = SpecSet(elements=frozenset({"fp8_e4m3"}))
KINDS = frozenset({"linear", "experts"})
WEIGHT_ONLY = Kernel(name="w8a16", target="acme:K", accepts=SchemeSet(weight=FP8), kinds=KINDS)
NATIVE = Kernel(
    name="w8a8",
    target="acme:K",
    accepts=SchemeSet(weight=FP8, activation=FP8),
    requires=frozenset({"fp8_mma"}),
    kinds=KINDS,
)
CHANNEL = {"quant_method": "w8a8_fp8"}
CASES = {"tensor": (TENSOR, "*x*"), "channel": (CHANNEL, "1x*"), "block": (BLOCK, "128x128")}
# What runs with fp8 tensor cores, and without: the plugin's kernels, and without bfloat16 acme's.
NATIVES = dict.fromkeys(("sm_89", "sm_90", "sm_121"), "cuda_fp8")
WIDENED = {"sm_75": "w8a16", "sm_80": "cuda_w8a16", "sm_86": "cuda_w8a16"}


@pytest.fixture
def kernels():
    """The CUDA plugin, and one with a kernel of each kind."""
    plugin = make_plugin("acme_kernels", get_kernels=lambda platform: (NATIVE, WEIGHT_ONLY))
    with use_plugins("quantdock_cuda.plugin", plugin):
        yield


@pytest.mark.parametrize("arch", (*WIDENED, *NATIVES))
@pytest.mark.parametrize("case", CASES)
def test_s10_below_fp8_tensor_cores_every_layer_runs_weight_only(kernels, tmp_path, case, arch):
    block, tile = CASES[case]
    plan = quantdock.explain(write(tmp_path, llama(tile), block), platform=f"cuda:{arch}")
    layers = [layer for layer in plan.layers if layer.decision == "quantized"]
    assert len(layers) == len(LINEARS)
    for layer in layers:
        assert " x fp8_e4m3[" in layer.scheme
        if arch in NATIVES:
            assert (layer.kernel, layer.substitution) == (NATIVES[arch], None)
        else:
            assert layer.kernel == WIDENED[arch]
            assert layer.substitution.source == layer.scheme
            assert " x " not in layer.substitution.target
            assert "no fp8 tensor cores" in layer.substitution.why
    assert plan.totals.without_kernel == plan.totals.errors == 0


@pytest.mark.parametrize("arch", (*WIDENED, *NATIVES))
def test_s10_experts_too(kernels, tmp_path, arch):
    folder = write_checkpoint(tmp_path / "m", LLAMA_CONFIG, deepseek(layers=1, experts=2))
    plan = quantdock.explain(folder, platform=f"cuda:{arch}")
    experts = {layer.kernel for layer in plan.layers if layer.kind == "experts"}
    # Kernels that run experts whole: the plugin's, where there is one.
    chosen = (NATIVES | WIDENED)[arch]
    assert experts == {f"{chosen}_experts" if chosen.startswith("cuda") else chosen}


def test_s10_static_scales_are_no_hindrance(kernels, tmp_path):
    folder = write(tmp_path, with_input_scales(llama("*x*")), STATIC)
    plan = quantdock.explain(folder, platform="cuda:sm_86")
    assert {layer.kernel for layer in plan.layers if layer.scheme} == {"cuda_w8a16"}


def test_s10_a_promise_of_activations_is_refused_and_not_broken(kernels, tmp_path):
    folder = write(tmp_path, llama())
    asked = {"quantization": "fp8_per_channel"}
    assert quantdock.explain(folder, platform="cuda:sm_89", **asked).totals.without_kernel == 0
    plan = quantdock.explain(folder, platform="cuda:sm_80", **asked)
    assert plan.totals.without_kernel == len(LINEARS)
    assert any("no kernel here runs fp8_e4m3[1x*]" in warning for warning in plan.warnings)
    other = quantdock.explain(folder, platform="cuda:sm_80", quantization="fp8")
    assert {layer.kernel for layer in other.layers if layer.scheme} == {"cuda_w8a16"}


def test_s10_a_device_that_is_elsewhere_is_planned_for_and_never_loaded(tmp_path):
    folder = write(tmp_path, llama("128x128"), BLOCK)
    with use_plugins("quantdock_cuda.plugin"):
        layer = next(p for p in quantdock.explain(folder, "cuda:sm_80").layers if p.scheme)
        assert (layer.kernel, layer.substitution.target) == ("cuda_w8a16", "fp8_e4m3[128x128]")
        with pytest.raises(PlatformError, match=r"cuda.* on this machine"):
            load(folder, device="auto", platform="cuda:sm_80")
        with pytest.raises(PlatformError, match="does not run on device cpu"):
            load(folder, platform="cuda:sm_80")


def test_s23_asking_for_one_backend_is_a_hard_error_with_the_capability(kernels, tmp_path, capsys):
    folder = write(tmp_path, llama("128x128"), BLOCK)
    plan = quantdock.explain(folder, platform="cuda:sm_80", policy=Policy(require="w8a8"))
    layer = next(p for p in plan.layers if p.scheme)
    assert layer.lacks_kernel
    told = {r.kernel: r.reasons for r in layer.rejected}
    assert "cuda:sm_80 lacks ['fp8_mma']" in told["w8a8"]
    exact = quantdock.explain(folder, platform="cuda:sm_80", policy=Policy(exact=True))
    assert exact.totals.without_kernel == len(LINEARS)
    assert run_cli(["explain", str(folder), "--platform", "cuda:sm_80", "--exact"]) == 0
    assert "cuda:sm_80 lacks ['fp8_mma']" in capsys.readouterr().out


FLAGS = {
    "avx2": frozenset({"avx2", "fma", "f16c"}),
    "avx512": cpu.ARCHS["avx512"],
    "amx": cpu.ARCHS["amx"],
}


@pytest.fixture
def pose(monkeypatch):
    """Return a function that makes this machine a CPU with such flags."""

    def as_arch(arch):
        monkeypatch.setattr(cpu, "read_features", lambda *_: FLAGS[arch])
        monkeypatch.setattr("quantdock_cpu_amx.probe.request_tiles", lambda: True)
        monkeypatch.delenv("QUANTDOCK_PLATFORM", raising=False)
        return use_plugins("quantdock_cpu_amx.plugin")

    return as_arch


def test_s24_the_choice_follows_the_flags_and_results_agree(tmp_path, pose):
    folder = write(tmp_path, llama("128x128"), BLOCK)
    results = {}
    for arch in FLAGS:
        with pose(arch):
            model = load(folder, device="auto")
            plan = model.quantdock_plan
            assert plan.platform == ("cpu_amx:amx" if arch == "amx" else f"cpu:{arch}")
            slow = [w for w in plan.warnings if "plain torch" in w]
            assert len(slow) == 1 and slow[0].startswith(f"{len(LINEARS)} layers"), plan.warnings
            layer = next(p for p in plan.layers if p.prefix == Q)
            assert (layer.substitution is not None) is (arch == "amx")
            torch.manual_seed(1)
            results[arch] = [run(model, Q, torch.randn(m, 256)) for m in (1, 64)]
    for m in range(2):
        assert torch.equal(results["avx2"][m], results["avx512"][m])
        exact, widened = results["avx2"][m], results["amx"][m]
        # The rounding of activations to fp8, measured: 0.026.
        assert 0 < ((exact - widened).norm() / exact.norm()).item() < 0.04


def test_s24_the_change_can_be_refused(tmp_path, pose):
    folder = write(tmp_path, llama("128x128"), BLOCK)
    x = torch.randn(3, 256)
    with pose("avx2"):
        asked = run(load(folder, device="auto"), Q, x)
    with pose("amx"):
        model = load(folder, device="auto", exact=True)
        assert next(p for p in model.quantdock_plan.layers if p.prefix == Q).substitution is None
        assert torch.equal(run(model, Q, x), asked)


def test_s24_a_name_that_the_fast_platform_lacks_steps_down_and_says_so(tmp_path, pose):
    folder = write(tmp_path, llama())
    with pose("amx"):
        plan = load(folder, "mxfp8", device="auto").quantdock_plan
    assert plan.platform == "cpu:amx"
    assert "cpu_amx:amx does not run mxfp8; stepped down to cpu:amx" in plan.notes


@pytest.mark.parametrize("how", ["require", "prefer"])
def test_s24_a_kernel_that_is_named_changes_no_scheme(tmp_path, pose, how):
    folder = write(tmp_path, llama("128x128"), BLOCK)
    x = torch.randn(3, 256)
    with pose("amx"):
        usual, named = (load(folder, device="auto", **way) for way in ({}, {how: "reference"}))
        assert [la.substitution for la in named.quantdock_plan.layers] == [
            la.substitution for la in usual.quantdock_plan.layers
        ]
        assert torch.equal(run(named, Q, x), run(usual, Q, x))


@pytest.mark.parametrize(("all_of", "one"), [("channel", "block"), ("block", "channel")])
def test_s24_a_promise_is_of_the_layers_that_were_given_it(tmp_path, pose, all_of, one):
    folder = write(tmp_path, llama())
    names = {word: f"fp8_per_{word}" for word in ("channel", "block")}
    with pose("amx"):
        model = load(folder, names[all_of], choices={"*.q_proj": names[one]}, device="auto")
        for layer in model.quantdock_plan.layers:
            word = one if layer.prefix.endswith("q_proj") else all_of
            if layer.decision == "quantized":
                assert (layer.substitution is None) is (word == "channel"), layer.prefix
        notes = [n for n in model.quantdock_plan.notes if "promises its scheme" in n]
        assert len(notes) == 1 and "fp8_e4m3[1x*] x" in notes[0]
