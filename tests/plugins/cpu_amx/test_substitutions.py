"""4-bit weights with AMX: as asked, until a kernel runs them with int8 tokens."""

from __future__ import annotations

import pytest

from quantdock import Kernel, Policy, SchemeSet, SpecSet, explain
from quantdock.kernel import Problem
from quantdock.registry import dispatch_for
from quantdock.schemes import parse_scheme
from quantdock.testing import make_plugin, use_plugins

W4A16 = "uint4[1x32]:zero"
W4A8 = f"{W4A16} x int8[1x*]:dynamic"
CORE = "quantdock_cpu_amx.plugin"
FAST = Kernel(
    name="amx_w4a8",
    target="acme:K",
    accepts=SchemeSet(
        weight=SpecSet(elements=frozenset({"int4", "uint4"})),
        activation=SpecSet(elements=frozenset({"int8"}), dynamic=True),
    ),
    requires=frozenset({"amx_int8"}),
    note="a kernel made for this test",
)


def offer(platform):
    return (FAST,) if platform.name == "cpu_amx" else ()


@pytest.fixture
def fast():
    return make_plugin("acme_kernels", get_kernels=offer)


def problem(**fields):
    return Problem(**{"scheme": parse_scheme(W4A16), "n": 64, "k": 128, **fields})


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_without_such_a_kernel_nothing_changes(dtype):
    with use_plugins(CORE):
        chosen = dispatch_for("cpu_amx:amx").select(problem(dtype=dtype))
    assert (str(chosen.scheme), chosen.substitution) == (W4A16, None)
    assert chosen.kernel.name == ("int4_pack" if dtype == "bfloat16" else "reference")


def test_an_exact_kernel_comes_first_and_the_other_is_there_to_prefer(fast):
    with use_plugins(CORE, fast):
        dispatch = dispatch_for("cpu_amx:amx")
        assert dispatch.select(problem(dtype="bfloat16")).kernel.name == "int4_pack"
        wish = Policy(prefer=FAST.name)
        chosen = dispatch_for("cpu_amx:amx", wish).select(problem(dtype="bfloat16"))
    assert (chosen.kernel, str(chosen.scheme)) == (FAST, W4A8)
    assert "each token is rounded to int8" in chosen.substitution.why


def test_where_no_exact_kernel_runs_the_declared_one_does(fast):
    with use_plugins(CORE, fast):
        dispatch = dispatch_for("cpu_amx:amx")
        chosen = dispatch.select(problem(dtype="bfloat16", n=40))
        assert (chosen.kernel, str(chosen.scheme)) == (FAST, W4A8)
        assert chosen.substitution.accuracy.startswith("less exact than asked")
        exact = dispatch.select(problem(dtype="bfloat16", n=40, promised=True))
        assert (exact.kernel.name, exact.substitution) == ("reference", None)
        older = dispatch_for("cpu_amx:avx512").select(problem(dtype="bfloat16", n=40))
        assert (older.kernel.name, older.substitution) == ("reference", None)


@pytest.mark.parametrize("scheme", ["int4[1x32]:act-order", "int8[1x*]", "int3[1x32]"])
def test_other_schemes_are_not_replaced(fast, scheme):
    with use_plugins(CORE, fast):
        chosen = dispatch_for("cpu_amx:amx").select(
            problem(scheme=parse_scheme(scheme), dtype="float32")
        )
    assert (chosen.kernel.name, chosen.substitution) == ("reference", None)


@pytest.mark.parametrize("model", ["awq-w4-g32", "gptq-w4-g32-asym-v2"])
def test_the_plan_whole(shared, fast, model):
    folder = shared / "models" / model
    with use_plugins(CORE):
        plan = explain(folder, platform="cpu_amx:amx")
    layers = [layer for layer in plan.layers if layer.decision == "quantized"]
    assert (plan.platform, plan.level, len(layers)) == ("cpu_amx:amx", 2, 35)
    assert {layer.kernel for layer in layers} == {"int4_pack"}
    assert {layer.scheme for layer in layers} == {W4A16}
    assert {layer.substitution for layer in layers} == {None}
    with use_plugins(CORE, fast):
        plan = explain(folder, platform="cpu_amx:amx", policy=Policy(prefer=FAST.name))
    layers = [layer for layer in plan.layers if layer.decision == "quantized"]
    assert {layer.kernel for layer in layers} == {FAST.name}
    swaps = {(layer.substitution.source, layer.substitution.target) for layer in layers}
    assert swaps == {(W4A16, W4A8)}
    assert {layer.kernel_note for layer in layers} == {FAST.note}
    with use_plugins(CORE, fast):
        plan = explain(folder, platform="cpu_amx:amx", policy=Policy(exact=True))
    assert {layer.kernel for layer in plan.layers if layer.scheme} == {"int4_pack"}
