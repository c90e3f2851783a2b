"""compressed-tensors: targets, ignore lists, several groups, what the headers say against them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from quantdock.checkpoint import find_quantization
from quantdock.configs.compressed_tensors import CompressedTensorsConfig
from quantdock.errors import ConfigError, MethodNotYetError
from quantdock.schemes import LayerFacts, StoredTensor

FP8 = {"num_bits": 8, "type": "float", "symmetric": True}
TOKEN = {**FP8, "strategy": "token", "dynamic": True}
STATIC = {**FP8, "strategy": "tensor", "dynamic": False}
CHANNEL = {
    "targets": ["Linear"],
    "weights": {**FP8, "strategy": "channel"},
    "input_activations": TOKEN,
}
BLOCK = {
    "targets": ["re:.*o_proj", "model.layers.1.mlp.up_proj"],
    "weights": {**FP8, "strategy": "block", "block_structure": [128, 128]},
    "input_activations": {**FP8, "strategy": "group", "group_size": 128, "dynamic": True},
}
EXPERT = "model.layers.0.mlp.experts.0.w1"
UP = "model.layers.0.mlp.up_proj"


def config(*groups: Any, **fields: Any) -> CompressedTensorsConfig:
    named = {f"group_{index}": group for index, group in enumerate(groups or (CHANNEL,))}
    block = {"format": "float-quantized", "config_groups": named, "ignore": ["lm_head"]}
    return CompressedTensorsConfig.from_config({**block, **fields})


def stored(
    weight: str, scale: tuple[int, ...] | None = None, **more: Any
) -> dict[str, StoredTensor]:
    tensors = {"weight": StoredTensor(dtype=weight, shape=(256, 256))}
    if scale is not None:
        tensors["weight_scale"] = StoredTensor(dtype="float32", shape=scale)
    return tensors | more


def scheme(made: CompressedTensorsConfig, prefix: str, **facts: Any) -> str:
    return str(made.scheme_for(LayerFacts(prefix=prefix, **facts)).scheme)


def test_a_class_name_covers_every_linear_layer() -> None:
    made = config()
    assert scheme(made, UP) == "fp8_e4m3[1x*] x fp8_e4m3[1x*]:dynamic"
    assert scheme(made, f"{UP}.experts.0.w1", kind="experts", class_names=("Experts",)) != "None"
    decision = made.scheme_for(
        LayerFacts(prefix="model.embed_tokens", kind="embedding", class_names=("Embedding",))
    )
    assert (decision.kind, decision.source) == (
        "unquantized",
        "config_groups, where no target matches it,",
    )


def test_names_come_before_expressions_before_classes() -> None:
    for groups in ((CHANNEL, BLOCK), (BLOCK, CHANNEL)):
        made = config(*groups)
        assert scheme(made, "model.layers.3.self_attn.o_proj").startswith("fp8_e4m3[128x128]")
        assert scheme(made, "model.layers.1.mlp.up_proj").startswith("fp8_e4m3[128x128]")
        assert scheme(made, UP).startswith("fp8_e4m3[1x*]")


def test_each_group_has_a_format_of_its_own() -> None:
    nv = {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16}
    experts = {"targets": ["re:.*experts.*"], "weights": nv, "format": "nvfp4-pack-quantized"}
    made = config({**CHANNEL, "format": "float-quantized"}, experts, format="mixed-precision")
    assert scheme(made, UP) == "fp8_e4m3[1x*] x fp8_e4m3[1x*]:dynamic"
    assert scheme(made, EXPERT, kind="experts") == "fp4_e2m1[1x16]:e4m3:second[*x*]"


def test_ignore_lists_win_over_targets() -> None:
    made = config(ignore=["lm_head", "re:.*down_proj", UP])
    for prefix in ("lm_head", "model.layers.0.mlp.down_proj", UP):
        decision = made.scheme_for(LayerFacts(prefix=prefix))
        assert decision.kind == "unquantized" and decision.source.startswith("ignore[")
    assert made.unmatched() == ()
    assert config(ignore=["nothing"]).unmatched() == ("ignore[0] = 'nothing'",)


def test_stored_tensors_decide_against_the_json() -> None:
    made = config()
    plain = LayerFacts(prefix="mtp.fc", stored=stored("bfloat16"))
    assert made.scheme_for(plain).because == "the file stores it as bfloat16"
    listed = LayerFacts(prefix="lm_head", kind="head", stored=stored("float8_e4m3fn", (256, 1)))
    assert str(made.scheme_for(listed).scheme) == "fp8_e4m3[1x*] x fp8_e4m3[1x*]:dynamic"
    tensor = LayerFacts(prefix=UP, stored=stored("float8_e4m3fn", (1,)))
    assert str(made.scheme_for(tensor).scheme) == "fp8_e4m3[*x*] x fp8_e4m3[1x*]:dynamic"
    assert made.notes() == (
        "mtp.fc is stored as bfloat16, though no entry leaves it out; the stored tensors decide",
        "lm_head is stored as float8_e4m3fn, though ignore[0] = 'lm_head' leaves it out; "
        "the stored tensors decide",
        "model.layers.*.mlp.up_proj is stored as fp8_e4m3[*x*], though config_groups.group_0; "
        "the stored tensors decide",
    )


def test_a_missing_scale_is_an_error_that_names_it() -> None:
    decision = config().scheme_for(LayerFacts(prefix=UP, stored=stored("float8_e4m3fn")))
    assert decision.error and f"{UP}.weight is stored as float8_e4m3fn" in decision.because


def test_static_activations_need_their_scale() -> None:
    made = config({**CHANNEL, "input_activations": STATIC})
    missing = LayerFacts(prefix=UP, stored=stored("float8_e4m3fn", (256, 1)))
    assert f"{UP}.input_scale is missing" in made.scheme_for(missing).because
    scale = StoredTensor(dtype="float32", shape=(1,))
    facts = LayerFacts(prefix=UP, stored=stored("float8_e4m3fn", (256, 1), input_scale=scale))
    found = made.scheme_for(facts).scheme
    assert str(found) == "fp8_e4m3[1x*] x fp8_e4m3[*x*]"
    assert [slot.name for slot in made.slots(found, 256, 256, facts)] == [
        "weight", "weight_scale", "input_scale"
    ]  # fmt: skip


def test_the_kv_cache_is_read_as_everywhere() -> None:
    scheme_ = {**FP8, "strategy": "tensor", "dynamic": False}
    assert str(config(kv_cache_scheme=scheme_).kv_cache_spec()) == "fp8_e4m3[tensor]"
    assert config(kv_cache_scheme=None).kv_cache_spec() is None


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"config_groups": None}, "config_groups is missing"),
        ({"format": "marlin-24"}, "group_0 is stored as marlin-24, which is sparse"),
        ({"sparsity_config": {"format": "sparse-24-bitmask"}}, "stores sparse weights"),
        ({"transform_config": {"config_groups": {"u": {}}}}, "transforms weights"),
    ],
)
def test_kinds_to_come_are_named(fields: dict[str, Any], text: str) -> None:
    with pytest.raises(MethodNotYetError, match=text):
        config(**fields)


@pytest.mark.parametrize(
    "fields", [{"sparsity_config": {}}, {"sparsity_config": {"format": "dense"}}]
)
def test_empty_extensions_say_nothing(fields: dict[str, Any]) -> None:
    assert scheme(config(**fields, transform_config={}, version="0.19.0"), UP) != "None"


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"config_groups": ["a"]}, r"config_groups is \['a'\]"),
        ({"ignore": "lm_head"}, "ignore is 'lm_head'"),
        ({"sparsity_config": "none"}, "sparsity_config is 'none'"),
    ],
)
def test_impossible_fields_are_named(fields: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=f"compressed-tensors: {text}"):
        config(**fields)


def test_every_published_block_has_schemes_or_is_refused_by_name(shared: Path) -> None:
    """None stands for a block that is read; the text is why one is not."""
    found = {}
    for row in json.loads((shared / "cases" / "real-configs.json").read_text()):
        block = find_quantization(row["config"])
        if block is None or block.method != "compressed-tensors":
            continue
        try:
            made = CompressedTensorsConfig.from_config(block.block)
        except MethodNotYetError as error:
            found[row["model"]] = error.why[0]
            continue
        is_mixture = row["model"] == "moonshotai/Kimi-K3"  # only its experts are quantized
        found[row["model"]] = scheme(made, EXPERT if is_mixture else UP)
    assert found.pop("DeepSeek-V3.2 W4A8 (omniinfer guide)").startswith(
        "group_0 has weights with a num_bits for each module"
    )
    assert found == {
        "moonshotai/Kimi-K3": "fp4_e2m1[1x32]:e8m0:even",
        "compressed-tensors MXFP4 (README example, Llama-3-8B)": (
            "fp4_e2m1[1x32]:e8m0:even x fp4_e2m1[1x32]:e8m0:even:dynamic"
        ),
        "compressed-tensors + sparsity (test fixture)": "sparsity_config stores sparse weights",
        "unsloth/Qwen3.6-27B-NVFP4": (
            "fp4_e2m1[1x16]:e4m3:second[*x*] x fp4_e2m1[1x16]:e4m3:dynamic:second[*x*]"
        ),
        "neuralmagic/Meta-Llama-3.1-8B-Instruct-FP8": "fp8_e4m3[*x*] x fp8_e4m3[*x*]",
        "neuralmagic/Meta-Llama-3.1-8B-Instruct-FP8-dynamic": (
            "fp8_e4m3[1x*] x fp8_e4m3[1x*]:dynamic"
        ),
        "neuralmagic/Meta-Llama-3.1-8B-Instruct-quantized.w8a8": ("int8[1x*] x int8[1x*]:dynamic"),
    }
