"""Rules: one layer of each kind, from the middle of the model."""

from __future__ import annotations

import json

from quantdock import explain
from quantdock.checkpoint import find_quantization
from quantdock.kernel import Policy
from quantdock.plan.rules import plan_rules
from quantdock.plan.setting import Setting, bind_config, choose_dtype
from quantdock.platform import Platform
from quantdock.registry import choose_method
from quantdock.schemes import Decision, LayerFacts, parse_scheme
from tests.core.plan.conftest import ToyConfig
from tests.sparse_files import write_json


def test_each_kind_is_asked_by_a_usual_name(config, make_dispatch):
    setting = Setting(config=config, dispatch=make_dispatch(), dtype="bfloat16")
    model = {"num_hidden_layers": 61, "n_routed_experts": 256, "vision_config": {}}
    rules = plan_rules(model, setting)
    assert [(rule.prefix, rule.kind, rule.decision) for rule in rules] == [
        ("model.embed_tokens", "embedding", "unquantized"),
        ("model.layers.30.self_attn", "attention", "unquantized"),
        ("model.layers.30.self_attn.o_proj", "linear", "quantized"),
        ("model.layers.30.mlp.experts.0.down_proj", "experts", "quantized"),
        ("model.layers.30.mlp.down_proj", "linear", "quantized"),
        ("model.visual.blocks.0.attn.qkv", "linear", "quantized"),
        ("lm_head", "head", "unquantized"),
    ]
    assert [rule.kernel for rule in rules if rule.kind == "linear"] == ["fast"] * 3


def test_a_dense_text_model_has_neither_experts_nor_a_tower(config, make_dispatch):
    setting = Setting(config=config, dispatch=make_dispatch(), dtype="bfloat16")
    assert len(plan_rules({}, setting)) == 5


def test_a_number_of_layers_beyond_all_reason_is_no_number_of_questions(config, make_dispatch):
    setting = Setting(config=config, dispatch=make_dispatch(), dtype="bfloat16")
    assert len(plan_rules({"num_hidden_layers": 10**15}, setting)) == 5


def test_the_dtype_is_the_files_where_the_device_has_it():
    device = Platform(name="toy", arch="t", device="cpu", dtypes=("bfloat16", "float32"))
    assert choose_dtype({"dtype": "float32"}, device) == "float32"
    assert choose_dtype({"torch_dtype": "float16"}, device) == "bfloat16"
    assert choose_dtype({}, device) == "bfloat16"


class Two(ToyConfig):
    """Quantizes layers 0, and what is called odd, in their own ways."""

    def scheme_for(self, facts):
        own = {"layers.0.": "int8[1x*]", "odd": "int4[1x32]", "w1": "int2[1x32]"}
        word = next((scheme for name, scheme in own.items() if name in facts.prefix), None)
        if word is None:
            return super().scheme_for(facts)
        return Decision.quantized(parse_scheme(word), "it is said", "the map")


def test_each_scheme_that_some_layers_have_is_shown_once(make_dispatch):
    setting = Setting(config=Two(), dispatch=make_dispatch(), dtype="bfloat16")
    listed = ("map['*.odd_proj']", "map['h.2.experts.1.w1']", "map['re:.*']", "map['odd']")
    rules = plan_rules({"num_hidden_layers": 8}, setting, listed)
    assert [(rule.prefix, rule.kind, rule.scheme) for rule in rules[5:]] == [
        ("model.layers.4.odd_proj", "linear", "int4[1x32]"),
        ("h.2.experts.1.w1", "experts", "int2[1x32]"),
        ("model.layers.0.self_attn.q_proj", "linear", "int8[1x*]"),
    ]


def test_real_configs_show_every_scheme_that_they_state(shared, tmp_path):
    """Those of tools whose configs have a reader for each scheme."""
    missing, several = {}, 0
    for entry in json.loads((shared / "cases" / "real-configs.json").read_text()):
        folder = tmp_path / entry["model"].replace("/", "-")
        folder.mkdir()
        write_json(folder / "config.json", entry["config"])
        for name, content in entry.get("sidecar", {}).items():
            write_json(folder / name, content)
        plan = explain(folder, "cpu:generic")
        if plan.unsupported or plan.method == "none":
            continue
        choice = choose_method(None, find_quantization(entry["config"], folder), "cpu:generic")
        readers = getattr(bind_config(choice, Policy()), "readers", ())
        layer = LayerFacts(prefix="up_proj")
        stated = {str(reader.scheme_for(layer).scheme) for reader in readers}
        several += len(stated) > 1
        if lost := stated - {rule.scheme for rule in plan.rules}:
            missing[entry["model"]] = lost
    assert missing == {} and several >= 5


def test_a_requirement_that_no_rule_needs_is_noted():
    config = {"num_hidden_layers": 2, "architectures": ["LlamaForCausalLM"]}
    plan = explain(config, "cpu:generic", policy=Policy(require="reference"))
    said = "the kernel reference is required, and none of these layers would be quantized"
    assert said in plan.notes
