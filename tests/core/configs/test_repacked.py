"""gptq_marlin and awq_marlin: who takes which file, what they require, what runs the rest."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from quantdock import Absent, Platform, PlatformEntry
from quantdock.configs.awq import AWQConfig
from quantdock.configs.gptq import GPTQConfig
from quantdock.configs.repacked import AWQMarlinConfig, GPTQMarlinConfig
from quantdock.errors import MethodLookupError, NoKernelError
from quantdock.kernel import Kernel, Policy
from quantdock.plan.layer import plan_layer
from quantdock.plan.planner import explain
from quantdock.plan.setting import bind_config
from quantdock.registry import choose_method
from quantdock.schemes import LayerFacts, SchemeSet, SpecSet
from quantdock.testing import make_plugin, use_plugins

GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 128, "sym": True, "desc_act": False}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True, "version": "gemm"}
FUSED = Kernel(
    name="fused",
    target="demo:Fused",
    accepts=SchemeSet(weight=SpecSet(elements=frozenset({"int4", "uint4"}))),
    n_multiple=64,
    k_multiple=128,
    repacks=True,
)
PLAIN = Kernel(name="plain", target="demo:Plain", accepts=SchemeSet(weight=SpecSet(act_order=None)))
UP = LayerFacts(prefix="model.layers.0.mlp.up_proj")


def described(arch):
    return Platform(name="acme", arch=arch, device="acme", described=True)


def acme(*kernels):
    """Return a plugin that owns the platform ``acme``, where ``kernels`` are offered."""
    entry = PlatformEntry(
        name="acme",
        rank=50,
        probe=f"{__name__}:probe",
        describe=f"{__name__}:described",
        archs=("one",),
    )
    return make_plugin(
        "acme_device",
        get_platforms=lambda: (entry,),
        get_kernels=lambda platform: kernels if platform.name == "acme" else (),
    )


def probe(index):
    return Absent(reason="no such device")


def choose(user, block, *kernels):
    file = SimpleNamespace(method=block["quant_method"], block=block, source="config.json")
    with use_plugins(acme(*kernels)):
        choice = choose_method(user, file, "acme:one")
        return choice, bind_config(choice, Policy())


def kernel_of(config, n=256, k=256):
    return plan_layer(config, UP, n, k, "bfloat16", config.dispatch)


@pytest.mark.parametrize(
    ("block", "name", "scheme"),
    [(GPTQ, "gptq_marlin", "int4[1x128]"), (AWQ, "awq_marlin", "uint4[1x128]:zero")],
)
class TestWhereAKernelFits:
    """The three things a user may say of a file that a repacking kernel takes."""

    def test_nothing_becomes_the_repacked_path(self, block, name, scheme):
        choice, config = choose(None, block, PLAIN, FUSED)
        assert (choice.name, config.repacked) == (name, None)
        file = block["quant_method"]
        reason = f"{name} takes it over: fused repacks {scheme}"
        assert choice.because == f"config.json says {file}; {reason}"

    def test_other_kernels_run_layers_that_do_not_fit_it(self, block, name, scheme):
        _, config = choose(None, block, FUSED, PLAIN)
        assert kernel_of(config).kernel == "fused"
        small = kernel_of(config, n=96)
        assert small.kernel == "plain"
        assert small.rejected[0].reasons == ("N=96 is no multiple of 64",)

    def test_its_name_requires_it(self, block, name, scheme):
        choice, config = choose(name, block, PLAIN, FUSED)
        assert (choice.name, config.repacked) == (name, True)
        assert choice.because == (
            f"the user asks for {name}, which takes the file: fused repacks {scheme}"
        )
        assert kernel_of(config).kernel == "fused"
        small = kernel_of(config, n=96)
        assert small.kernel is None
        reasons = {r.kernel: r.reasons for r in small.rejected}
        assert reasons["fused"] == ("N=96 is no multiple of 64",)
        required = "leaves codes as they are; one that repacks them is required"
        assert all(required in reasons[other] for other in ("plain", "reference"))

    def test_the_files_own_name_never_takes_it_and_the_plan_recommends_it(
        self, block, name, scheme
    ):
        file = block["quant_method"]
        choice, config = choose(file, block, FUSED, PLAIN)
        assert (choice.name, config.repacked) == (file, False)
        assert choice.notes == (
            f"{name} would take this file over (fused repacks {scheme}); the user's choice "
            f"stands. Asking for {name}, or for nothing, takes it",
        )
        plan = kernel_of(config)
        assert plan.kernel == "plain"
        assert plan.rejected[0].reasons == (
            "repacks codes, which the method that was asked for leaves as they are",
        )

    def test_an_automatic_name_takes_whichever_kernel_comes_first(self, block, name, scheme):
        auto = f"auto_{block['quant_method']}"
        for kernels in ((FUSED, PLAIN), (PLAIN, FUSED)):
            choice, config = choose(auto, block, *kernels)
            assert (choice.name, config.repacked) == (block["quant_method"], None)
            assert kernel_of(config).kernel == kernels[0].name
            assert choice.notes == ()

    def test_none_decodes_the_file_whoever_would_take_it(self, block, name, scheme):
        choice, _ = choose("none", block, FUSED)
        assert (choice.name, choice.dequantize) == (block["quant_method"], True)


@pytest.mark.parametrize(
    ("block", "scheme"),
    [
        ({**GPTQ, "bits": 3}, "int3[1x128]"),
        ({**GPTQ, "desc_act": True}, "int4[1x128]:act-order"),
    ],
)
class TestWhereNoKernelFits:
    """The facts that decide: bits, symmetry, group size and act-order."""

    def test_nothing_leaves_the_file_what_it_is(self, block, scheme):
        choice, config = choose(None, block, FUSED, PLAIN)
        assert (choice.name, choice.because) == ("gptq", "config.json says gptq")
        assert type(config) is GPTQConfig and kernel_of(config).kernel == "plain"

    def test_its_name_is_an_error_that_lists_the_facts(self, block, scheme):
        with pytest.raises(NoKernelError) as caught:
            choose("gptq_marlin", block, FUSED, PLAIN)
        said = str(caught.value).splitlines()
        assert said[0] == f"gptq_marlin was asked for, and no kernel on acme:one repacks {scheme}."
        assert said[1].startswith(f"  the file says bits = {block['bits']}, group_size = 128, sym")
        assert said[2].startswith("  fused: weight ")
        assert said[3] == ("Leave the option out, or ask for gptq, to run it with other kernels.")


def test_the_name_is_on_the_lists_of_platforms_with_such_kernels_only():
    with use_plugins(acme(FUSED)):
        for platform, names in (
            ("acme:one", {"gptq_marlin", "awq_marlin"}),
            ("cpu:generic", set()),
        ):
            with pytest.raises(MethodLookupError) as caught:
                choose_method("fp9", None, platform)
            assert {"gptq_marlin", "awq_marlin"} & set(caught.value.runnable) == names


def test_a_platform_without_such_kernels_says_so():
    with pytest.raises(NoKernelError, match="  no kernel on acme:one repacks anything\n"):
        choose("awq_marlin", AWQ, PLAIN)


def test_a_name_belongs_to_files_of_its_method():
    platform = described("one")
    assert AWQMarlinConfig.claim(GPTQ, None, platform, [FUSED]) is None
    assert GPTQMarlinConfig.claim(AWQ, None, platform, [FUSED]) is None
    assert GPTQMarlinConfig.claim({**GPTQ, "bits": 7}, None, platform, [FUSED]) is None
    assert GPTQMarlinConfig.claim({**GPTQ, "quant_method": "GPTQ"}, None, platform, [FUSED])
    assert AWQConfig.claim(AWQ, None, platform, [FUSED]) is None


def test_a_plan_from_json_says_who_takes_the_file():
    with use_plugins(acme(FUSED, PLAIN)):
        plan = explain({"model_type": "llama", "quantization_config": GPTQ}, "acme:one")
        assert plan.method == "gptq_marlin"
        rule = next(rule for rule in plan.rules if rule.kind == "linear")
        assert (rule.scheme, rule.kernel) == ("int4[1x128]", "fused")
