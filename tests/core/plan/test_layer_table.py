"""Plans of all layers, and what loading would stop at."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from quantdock import explain
from quantdock.checkpoint import read_header
from quantdock.plan.layer_table import decide_layers, plan_layers
from quantdock.plan.setting import Setting
from quantdock.plan.stored_layers import stored_model
from quantdock.problem import ExpertSet
from quantdock.schemes import SchemeSet, SpecSet, parse_scheme
from tests.core.plan.conftest import FAST, REFERENCE
from tests.sparse_files import LLAMA_CONFIG, plain, write_checkpoint, write_tensors

HEADER_DTYPES = {"float32": "F32", "bfloat16": "BF16", "int8": "I8"}
W4A8 = parse_scheme("int4[1x32] x fp8_e4m3[1x*]:dynamic")
WHOLE = replace(
    FAST,
    name="whole",
    kinds=frozenset({"experts"}),
    accepts=SchemeSet(weight=SpecSet(elements=frozenset({"fp8_e4m3"}))),
    experts=ExpertSet(activations=frozenset({"silu"})),
)


@pytest.fixture
def planned(tmp_path, config, make_dispatch):
    """Return a function: tensors -> prefix -> plan."""

    def plan(tensors, **changes):
        model = stored_model(read_header(write_tensors(tmp_path / "x.safetensors", tensors)))
        setting = Setting(
            **{"config": config, "dispatch": make_dispatch(), "dtype": "bfloat16", **changes}
        )
        decided = decide_layers(model, setting)
        return {layer.prefix: layer for layer in plan_layers(model, setting, decided)}

    return plan


def per_row(name, n, k, scale="weight_scale", dtype="F32", count=None):
    return {
        f"{name}.weight": ("F8_E4M3", (n, k)),
        f"{name}.{scale}": (dtype, (n if count is None else count, 1)),
    }


def test_every_layer_keeps_its_own_name_and_bytes(planned):
    tensors = per_row("l.0.up", 64, 128) | per_row("l.1.up", 64, 128) | plain("keep.x", 64, 128)
    plans = planned(tensors)
    assert list(plans) == ["l.0.up", "l.1.up", "keep.x"]
    assert plans["l.0.up"].kernel == plans["l.1.up"].kernel == "fast"
    assert plans["l.1.up"].bytes_stored == 64 * 128 + 64 * 4
    assert (plans["keep.x"].decision, plans["keep.x"].bytes_stored) == ("unquantized", 64 * 128 * 2)
    assert all(plan.warnings == () for plan in plans.values())


def test_an_alias_and_an_equal_shape_are_no_mismatch(planned):
    tensors = per_row("l.0.up", 64, 128, scale="scale")
    tensors["l.0.up.scale"] = ("F32", (64,))
    assert planned(tensors)["l.0.up"].warnings == ()


@pytest.mark.parametrize(
    ("tensors", "expected"),
    [
        ({"a.weight": ("F8_E4M3", (64, 128))}, "weight_scale is missing (nor scale)"),
        (per_row("a", 64, 128, count=63), "weight_scale is [63, 1], not [64, 1]"),
        (per_row("a", 64, 128, dtype="F16"), "weight_scale is float16, not float32"),
        (
            per_row("a", 64, 128) | {"a.weight_zero_point": ("I8", (64, 1))},
            "weight_zero_point is stored, and nothing takes it",
        ),
        ({"a.weight_scale": ("F32", (64, 1))}, "weight is missing"),
    ],
)
def test_what_loading_would_stop_at(planned, tensors, expected):
    (plan,) = planned(tensors).values()
    assert plan.warnings == (f"loading would stop: {expected}",)


def test_codes_that_lie_beside_are_missing_under_their_own_name(tmp_path):
    tensors = {
        "model.layers.0.mlp.up_proj.qzeros": ("I32", (1, 8)),
        "model.layers.0.mlp.up_proj.scales": ("F16", (1, 64)),
    }
    block = {"quant_method": "gptq", "bits": 4, "group_size": 128, "sym": True}
    config = {**LLAMA_CONFIG, "quantization_config": block}
    plan = explain(write_checkpoint(tmp_path / "m", config, tensors), platform="cpu:generic")
    (layer,) = plan.layers
    assert layer.warnings[-1] == "loading would stop: qweight is missing"


def test_scales_that_are_turned_would_stop_loading(planned):
    (plan,) = planned(
        {"a.weight": ("F8_E4M3", (64, 128)), "a.weight_scale": ("F32", (1, 64))}
    ).values()
    assert plan.warnings == ("loading would stop: weight_scale is [1, 64], not [64, 1]",)


def test_each_tensor_that_a_plain_layer_cannot_take_is_named(planned):
    (plan,) = planned(per_row("keep", 64, 128)).values()
    assert plan.warnings == tuple(
        f"loading would stop: {name} is stored, and the layer is plain"
        for name in ("weight", "weight_scale")
    )


@pytest.mark.parametrize("dtype", ["I8", "I32", "U8"])
def test_whole_numbers_in_a_plain_layer_would_stop_loading(planned, dtype):
    (plan,) = planned({"keep.weight": (dtype, (64, 128))}).values()
    (warning,) = plan.warnings
    assert warning.startswith("loading would stop: weight is ")
    assert warning.endswith("and the layer is plain")


def test_kv_scales_beside_a_projection_are_not_its_own(planned):
    tensors = per_row("l.0.self_attn.k_proj", 64, 128)
    tensors["l.0.self_attn.k_proj.k_scale"] = ("F32", ())
    assert planned(tensors)["l.0.self_attn.k_proj"].warnings == ()


def test_a_refused_layer_says_only_why(planned):
    (plan,) = planned({"bad.weight": ("F8_E4M3", (64, 128))}).values()
    assert (plan.decision, plan.warnings) == ("error", ())


def test_decoding_at_load_is_no_quantization(planned):
    (plan,) = planned(per_row("a", 64, 128), decodes=True).values()
    assert plan.decision == "unquantized"
    assert plan.because.startswith("decoded from fp8_e4m3[1x*] x")
    assert plan.bytes_memory == 64 * 128 * 2


@pytest.mark.parametrize(
    ("lost", "told"),
    [("weight_scale", True), ("weight", True), ("input_scale", False), ("", False)],
)
def test_what_cannot_be_decoded_is_told_as_what_cannot_be_loaded(shared, tmp_path, lost, told):
    """Of the input nothing is decoded: its scale may be missing."""
    layer = "model.layers.0.mlp.up_proj"
    stored = read_header(shared / "models" / "quark-int8" / "model.safetensors")
    config = json.loads((shared / "models" / "quark-int8" / "config.json").read_text())
    tensors = {
        name: (HEADER_DTYPES[entry.dtype], entry.shape)
        for name, entry in stored.items()
        if name != f"{layer}.{lost}"
    }
    folder = write_checkpoint(tmp_path / "m", config, tensors)
    plan = explain(folder, platform="cpu:generic", quantization="none")
    found = [w for w in plan.warnings if "loading would stop" in w]
    assert found == ([f"1 layer ({layer}): loading would stop: {lost} is missing"] if told else [])


def test_a_block_of_the_language_model_leaves_towers_alone(planned):
    tensors = plain("vision_tower.blocks.0.fc", 64, 128) | per_row("language_model.l.up", 64, 128)
    plans = planned(tensors, scope="text_config")
    tower, language = plans.values()
    assert (tower.decision, tower.source) == ("unquantized", "config.json: text_config")
    assert language.decision == "quantized"


@pytest.mark.parametrize(
    ("changes", "kernels"),
    [
        ({}, {"gate": "whole", "up": "whole", "down": "whole"}),
        ({"down": {"promised": True}}, {"gate": "fast", "up": "fast", "down": None}),
        ({"up": {"promised": True}}, {"gate": None, "up": None, "down": "fast"}),
        ({"down": {"scheme": W4A8}}, {"gate": "fast", "up": "fast", "down": "fast"}),
    ],
)
def test_experts_that_a_kernel_sees_whole_are_planned_as_one(
    planned, config, make_dispatch, changes, kernels
):
    """Loading asks once for w13 and w2 together; gate and up are one matrix."""

    class Some(type(config)):
        def scheme_for(self, facts):
            role = facts.prefix.rpartition(".")[2].removesuffix("_proj")
            return replace(super().scheme_for(facts), **changes.get(role, {}))

    dispatch = make_dispatch(kernels=(WHOLE, FAST, REFERENCE))
    tensors = {}
    for expert in range(2):
        for role in kernels:
            tensors |= per_row(f"l.0.mlp.experts.{expert}.{role}_proj", 64, 64)
    plans = planned(tensors, config=Some(), dispatch=dispatch)
    assert {(p.rpartition(".")[2], plan.kernel) for p, plan in plans.items()} == {
        (f"{role}_proj", kernel) for role, kernel in kernels.items()
    }


def test_experts_that_are_missing_are_told_within_reason(tmp_path, config, make_dispatch):
    tensors = {}
    for role in ("gate", "up", "down"):
        tensors |= per_row(f"l.0.mlp.experts.0.{role}_proj", 64, 64)
    model = stored_model(read_header(write_tensors(tmp_path / "x.safetensors", tensors)))
    setting = Setting(config=config, dispatch=make_dispatch(), dtype="bfloat16")
    for number, told in ((3, 6), (10**15, 3000)):
        faults = decide_layers(model, setting, {"num_experts": number}).faults
        assert told <= len(faults) <= told + 6
        assert f"each of the {number} experts has its own" in faults[0].why


@pytest.mark.parametrize("name", ["gptq-w4-g64-desc", "awq-w4-g32", "modelopt-nvfp4-w4a16"])
def test_packed_layers_that_are_decoded_at_load_have_their_sizes(shared, name):
    folder = shared / "models" / name
    plans = [explain(folder, platform="cpu", quantization=method) for method in (None, "none")]
    packed, plain = ({p.prefix: (p.n, p.k) for p in plan.layers} for plan in plans)
    assert packed == plain
    decoded = (p for p in plans[1].layers if "decoded from" in p.because)
    assert all(p.bytes_memory == p.n * p.k * 2 for p in decoded)
