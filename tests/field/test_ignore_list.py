"""Lists of layers to leave out, in the field: S02, S13 to S16, S37."""

from __future__ import annotations

import pytest
import torch

import quantdock
import toy_llava
from quantdock.errors import ConfigError
from quantdock.layers import LinearBase
from quantdock.methods.unquantized import UnquantizedLinearMethod
from quantdock.schemes import LayerFacts, StoredTensor
from tests.sparse_files import plain, write_checkpoint
from toy_llama import (
    BLOCK,
    CONFIG,
    DOWN,
    GATE,
    HEAD,
    LINEARS,
    OUT,
    TENSOR,
    UP,
    K,
    Q,
    V,
    codes,
    encoded,
    llama,
    load,
    logits,
    plans,
    run,
    write,
)

CPU = "cpu:generic"
FP8 = StoredTensor(dtype="float8_e4m3fn", shape=(256, 256))
BF16 = StoredTensor(dtype="bfloat16", shape=(256, 256))
SCALES = StoredTensor(dtype="float32", shape=(2, 2))


def config_of(block):
    kind = quantdock.get_quantization_config(block["quant_method"], CPU)
    return kind.from_config(block).bind(quantdock.dispatch_for(CPU))


def is_quantized(config, prefix, **facts):
    """Return whether a linear layer that an engine builds under this name is quantized."""
    layer = LinearBase(
        256, 256, False, quant_config=config, facts=LayerFacts(prefix=prefix, **facts)
    )
    return not isinstance(layer.quant_method, UnquantizedLinearMethod)


RENAMED = (
    "model.language_model.layers.0.self_attn.q_proj",
    "model.visual.blocks.0.attn.qkv",
    "lm_head",
)


def test_s02_names_of_the_checkpoint_hold_for_names_at_run_time():
    config = config_of({**BLOCK, "modules_to_not_convert": list(RENAMED)})
    asked = {
        "language_model.model.layers.0.self_attn.q_proj": False,
        "visual.blocks.0.attn.qkv": False,
        "language_model.lm_head": False,
        "language_model.model.layers.1.mlp.down_proj": True,
        "language_model.model.layers.1.mlp.up_proj": True,
    }
    assert {name: is_quantized(config, name) for name in asked} == asked
    assert config.unmatched() == ()


MXFP4 = {"dtype": "fp4", "qscheme": "per_group", "group_size": 32}
QUARK = {
    "weight": {**MXFP4, "scale_format": "e8m0"},
    "input_tensors": {**MXFP4, "is_dynamic": True},
}
QUARK_BLOCK = {"dtype": "fp8_e4m3", "qscheme": "per_block", "block_size": [128, 128]}


def test_s02_overrides_by_layer_hold_for_names_at_run_time():
    config = config_of(
        {
            "quant_method": "quark",
            "exclude": list(RENAMED),
            "global_quant_config": QUARK,
            "layer_quant_config": {
                "model.language_model.layers.1.mlp.down_proj": {"weight": QUARK_BLOCK}
            },
        }
    )
    asked = {
        "language_model.model.layers.0.self_attn.q_proj": "None",
        "visual.blocks.0.attn.qkv": "None",
        "language_model.lm_head": "None",
        "language_model.model.layers.1.mlp.down_proj": "fp8_e4m3[128x128]",
        "language_model.model.layers.1.mlp.up_proj": (
            "fp4_e2m1[1x32]:e8m0:even x fp4_e2m1[1x32]:e8m0:even:dynamic"
        ),
    }
    found = {name: str(config.scheme_for(LayerFacts(prefix=name)).scheme) for name in asked}
    assert found == asked
    assert config.unmatched() == ()


@pytest.mark.parametrize("spell", [toy_llava.in_file, toy_llava.at_run_time, str])
def test_s02_either_spelling_of_a_renamed_layer_leaves_it_out(tmp_path, spell):
    stored = toy_llava.tensors("128x128")
    name = toy_llava.in_file(Q)
    stored[f"{name}.weight"] = toy_llava.tensors()[f"{name}.weight"]
    del stored[f"{name}.weight_scale_inv"]
    block = {**BLOCK, "modules_to_not_convert": [spell(Q), "vision_tower", "multi_modal_projector"]}
    model = load(toy_llava.write(tmp_path, stored, block))
    layer = plans(model)[name]
    assert layer.decision == "unquantized"
    assert layer.source == f"modules_to_not_convert[0] = {spell(Q)!r}"
    assert model.quantdock_plan.ignore_unmatched == ()
    assert not [note for note in model.quantdock_plan.notes if "decide" in note]
    assert model.quantdock_plan.totals.quantized == len(LINEARS) - 1


@pytest.mark.parametrize("spell", [toy_llava.in_file, toy_llava.at_run_time])
def test_s02_the_users_patterns_go_through_the_same_names(tmp_path, spell):
    folder = toy_llava.write(tmp_path, toy_llava.tensors())
    asked = {"ignore": [spell(Q), "vision_tower"], "choices": {spell(DOWN): "fp8_per_block"}}
    model = load(folder, "fp8_per_channel", **asked)
    found = plans(model)
    assert found[toy_llava.in_file(Q)].source == f"ignore[0] = {spell(Q)!r}"
    assert found[toy_llava.in_file(DOWN)].scheme.startswith("fp8_e4m3[128x128]")
    assert found[toy_llava.in_file(UP)].scheme.startswith("fp8_e4m3[1x*]")
    assert found[toy_llava.TOWER_FC1].decision == "unquantized"
    assert model.quantdock_plan.ignore_unmatched == ()


def test_s02_an_entry_that_names_nothing_is_reported(tmp_path):
    block = {**BLOCK, "modules_to_not_convert": ["lm_head", "model.layers.7.mlp"]}
    plan = load(write(tmp_path, llama("128x128"), block)).quantdock_plan
    assert plan.ignore_unmatched == ("modules_to_not_convert[1] = 'model.layers.7.mlp'",)


def test_s13_a_fused_name_on_the_list_holds_for_the_layer_and_its_parts():
    listed = ["model.layers.0.share_expert.gate_up_proj", "model.layers.0.self_attn.qkv_proj"]
    config = config_of({**BLOCK, "modules_to_not_convert": listed})
    asked = {
        "model.layers.0.share_expert.gate_up_proj": False,
        "model.layers.0.self_attn.qkv_proj": False,
        "model.layers.1.self_attn.qkv_proj": True,
        "model.layers.0.self_attn.k_proj": False,
    }
    assert {name: is_quantized(config, name) for name in asked} == asked


def test_s13_a_fused_layer_whose_parts_are_all_listed_is_left_out():
    stem = "model.layers.0.self_attn"
    config = config_of({**BLOCK, "ignored_layers": [f"{stem}.{p}_proj" for p in "qkv"]})
    assert not is_quantized(config, f"{stem}.qkv_proj")
    some = config_of({**BLOCK, "ignored_layers": [f"{stem}.q_proj"]})
    with pytest.raises(ConfigError) as caught:
        is_quantized(some, f"{stem}.qkv_proj")
    for text in ("the shards of", "ignored_layers[0]", f"{stem}.v_proj: not listed"):
        assert text in str(caught.value)


def test_s13_a_fused_name_on_the_list_in_a_file_with_parts(tmp_path):
    tensors = llama("128x128")
    for name in (Q, K, V, GATE, UP):
        tensors[f"{name}.weight"] = llama()[f"{name}.weight"]
        del tensors[f"{name}.weight_scale_inv"]
    listed = ["model.layers.0.mlp.gate_up_proj", "model.layers.0.self_attn.qkv_proj"]
    model = load(write(tmp_path, tensors, {**BLOCK, "modules_to_not_convert": listed}))
    for name in (Q, K, V):
        assert plans(model)[name].source == f"modules_to_not_convert[1] = {listed[1]!r}"
    assert plans(model)[UP].source == f"modules_to_not_convert[0] = {listed[0]!r}"
    assert plans(model)[OUT].decision == plans(model)[DOWN].decision == "quantized"
    assert not [note for note in model.quantdock_plan.notes if "decide" in note]
    assert logits(model).isfinite().all()


def stored_parts(parts, plain_one=""):
    stored = {f"{part}.weight": BF16 if part == plain_one else FP8 for part in parts}
    return stored | {f"{p}.weight_scale_inv": SCALES for p in parts if p != plain_one}


def test_s14_parts_that_are_not_stored_have_no_vote():
    config = config_of(BLOCK)
    prefix = "model.layers.5.self_attn.qkv_proj"
    assert is_quantized(config, prefix, stored=stored_parts(["q_proj", "k_proj"]))


def test_s14_parts_that_disagree_are_named_with_their_schemes():
    config = config_of(BLOCK)
    stored = stored_parts(["q_proj", "k_proj", "v_proj"], plain_one="v_proj")
    with pytest.raises(ConfigError) as caught:
        is_quantized(config, "model.layers.6.self_attn.qkv_proj", stored=stored)
    stem = "model.layers.6.self_attn"
    for part in ("q_proj", "k_proj"):
        assert f"{stem}.{part} is fp8_e4m3[128x128]" in str(caught.value)
    assert f"{stem}.v_proj is bfloat16" in str(caught.value)


def test_s14_a_model_with_separate_parts_takes_each_as_it_is_stored(tmp_path):
    tensors = llama("128x128")
    plain_v = llama()[f"{V}.weight"]
    del tensors[f"{V}.weight_scale_inv"]
    model = load(write(tmp_path, tensors | {f"{V}.weight": plain_v}, BLOCK))
    assert plans(model)[Q].decision == plans(model)[K].decision == "quantized"
    assert torch.equal(model.get_submodule(V).weight, plain_v.float())


MANY = {
    f"model.layers.{i}.{name}": (8, 8)
    for i in range(14)
    for name in ("mlp.up_proj", "self_attn.o_proj", "self_attn.q_proj")
}


def left_out(tmp_path, names):
    """Return the layers of a model of 14 layers that a user's list of names leaves out."""
    tensors = {"lm_head.weight": ("BF16", (8, 8))}
    for name, shape in MANY.items():
        tensors |= plain(name, *shape)
    config = {k: v for k, v in CONFIG.items() if k != "quantization_config"}
    folder = write_checkpoint(tmp_path / "m", {**config, "num_hidden_layers": 14}, tensors)
    plan = quantdock.explain(folder, platform=CPU, quantization="fp8_per_channel", ignore=names)
    assert plan.ignore_unmatched == ()
    return {layer.prefix for layer in plan.layers if layer.decision == "unquantized"} - {HEAD}


def test_s15_globs_mean_what_a_shell_means(tmp_path):
    listed = ["lm_head", "model.layers.0*", "model.layers.1.*", "model.layers.12.self_attn*"]
    expected = {name for name in MANY if name.split(".")[2] in ("0", "1")}
    expected |= {name for name in MANY if name.startswith("model.layers.12.self_attn")}
    assert left_out(tmp_path, listed) == expected


def test_s15_a_star_inside_a_name_covers_what_lies_below(tmp_path):
    assert left_out(tmp_path, ["model.layers.*.self_attn"]) == {n for n in MANY if "attn" in n}
    (tmp_path / "two").mkdir()
    assert left_out(tmp_path / "two", ["model.layers.1"]) == {
        name for name in MANY if name.startswith("model.layers.1.")
    }


def test_s15_globs_in_an_fp8_files_own_list():
    listed = ["model.layers.1.*", "model.layers.*.mlp.router"]
    config = config_of({**BLOCK, "modules_to_not_convert": listed})
    asked = {
        "model.layers.1.mlp.up_proj": False,
        "model.layers.10.mlp.up_proj": True,
        "model.layers.3.mlp.router": False,
        "model.layers.3.mlp.router_up": True,
    }
    assert {name: is_quantized(config, name) for name in asked} == asked


def test_s15_modelopts_lists_are_globs_from_the_beginning_of_a_name():
    listed = ["lm_head", "model.layers.0*", "model.layers.1.*", "model.layers.12.self_attn*"]
    config = config_of({"quant_method": "modelopt", "quant_algo": "W8A16", "ignore": listed})
    asked = {
        "model.layers.0.mlp.up_proj": False,
        "model.layers.1.mlp.up_proj": False,
        "model.layers.10.mlp.experts.0.up_proj": True,
        "model.layers.12.self_attn.o_proj": False,
        "model.layers.12.mlp.up_proj": True,
        "draft.model.layers.0.mlp.up_proj": True,
    }
    assert {name: is_quantized(config, name) for name in asked} == asked


def test_s15_gpt_oss_lists_whole_layers():
    config = config_of({"quant_method": "mxfp4", "ignore": ["model.layers.1.*"]})
    asked = {
        "model.layers.1.mlp.experts": False,
        "model.layers.10.mlp.experts": True,
        "model.layers.0.mlp.experts": True,
    }
    found = {
        name: config.scheme_for(LayerFacts(prefix=name, kind="experts")).kind == "quantized"
        for name in asked
    }
    assert found == asked


MTP = ("mtp.fc", "mtp.layers.0.mlp.down_proj")


def test_s16_a_speculative_block_that_no_list_names_is_what_the_file_stores(tmp_path):
    drafts = {name: 0.1 * torch.randn(256, 512) for name in MTP}
    tensors = llama("128x128") | {f"{n}.weight": w.to(torch.bfloat16) for n, w in drafts.items()}
    folder = write(tmp_path / "plain", tensors, {**BLOCK, "ignored_layers": ["lm_head"]})
    layers = {layer.prefix: layer for layer in quantdock.explain(folder, platform=CPU).layers}
    for name in MTP:
        assert layers[name].decision == "unquantized"
        assert layers[name].because == "the file stores it as bfloat16"
    assert sorted(load(folder).quantdock_plan.unused) == sorted(f"{name}.weight" for name in MTP)
    for name in MTP:
        tensors |= encoded(name, drafts[name], "128x128")
    packed = quantdock.explain(write(tmp_path / "packed", tensors, BLOCK), platform=CPU)
    layers = {layer.prefix: layer for layer in packed.layers}
    assert all(layers[name].decision == "quantized" for name in MTP)


def test_s16_an_engine_that_builds_the_block_gets_the_files_bits():
    config = config_of(BLOCK)
    weight = torch.randn(256, 512).to(torch.bfloat16)
    stored = {"weight": StoredTensor(dtype="bfloat16", shape=(256, 512))}
    facts = LayerFacts(prefix=MTP[1], stored=stored)
    layer = LinearBase(
        512, 256, False, quant_config=config, facts=facts, params_dtype=torch.bfloat16
    )
    layer.weight.weight_loader(layer.weight, weight)
    layer.quant_method.process_weights_after_loading(layer)
    assert torch.equal(layer.weight, weight)


def test_s37_a_tower_that_the_list_forgot_stays_plain(tmp_path):
    """Its 64 columns are no multiple of 128: built quantized it would crash, or be wrong."""
    block = {**BLOCK, "modules_to_not_convert": None}
    model = load(toy_llava.write(tmp_path, toy_llava.tensors("128x128"), block))
    layer = plans(model)[toy_llava.TOWER_FC1]
    assert (layer.decision, layer.source) == ("unquantized", "the file's headers")
    notes = [n for n in model.quantdock_plan.notes if "mlp.fc1" in n]
    assert notes == [
        "vision_tower.encoder.layers.*.mlp.fc1 is stored as bfloat16, though no entry leaves it "
        "out; the stored tensors decide"
    ]


def test_s37_a_layer_that_the_list_leaves_out_and_the_file_stores_in_fp8(tmp_path):
    tensors = llama("*x*") | {f"{Q}.weight": codes(256, 256), f"{Q}.weight_scale": torch.ones(())}
    model = load(write(tmp_path, tensors, {**TENSOR, "ignored_layers": ["self_attn.q_proj"]}))
    assert plans(model)[Q].decision == "quantized"
    assert run(model, Q, torch.ones(1, 256))[0, 0] == 256
    assert [note for note in model.quantdock_plan.notes if "leaves it out" in note] == [
        "model.layers.*.self_attn.q_proj is stored as float8_e4m3fn, though "
        "ignored_layers[0] = 'self_attn.q_proj' leaves it out; the stored tensors decide"
    ]
