"""fp8 blocks: S11, S13, S36, the published configs, third-party checkpoints."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from quantdock.configs.fbgemm_fp8 import FbgemmFp8Config
from quantdock.configs.fp8 import Fp8Config
from quantdock.configs.fp8_checkpoint import Fp8CheckpointConfig
from quantdock.errors import ConfigError
from quantdock.schemes import Decision, LayerFacts, StoredTensor, parse_scheme

LINEAR = "model.layers.0.mlp.up_proj"


def decide(block: dict[str, Any], prefix: str = LINEAR, kind: str = "linear") -> Decision:
    return Fp8Config.from_config(block).scheme_for(LayerFacts(prefix=prefix, kind=kind))


def scheme(block: dict[str, Any]) -> str:
    return str(decide(block).scheme)


@pytest.mark.parametrize(
    ("block", "expected"),
    [
        ({}, "fp8_e4m3[*x*] x fp8_e4m3[1x*]:dynamic"),
        ({"activation_scheme": "static"}, "fp8_e4m3[*x*] x fp8_e4m3[*x*]"),
        (
            {"weight_block_size": [128, 128]},
            "fp8_e4m3[128x128] x fp8_e4m3[1x128]:dynamic",
        ),
        ({"weight_block_size": [64, 32]}, "fp8_e4m3[64x32] x fp8_e4m3[1x32]:dynamic"),
        ({"weight_block_size": [1, 128]}, "fp8_e4m3[1x128] x fp8_e4m3[1x128]:dynamic"),
        (
            {"weight_block_size": [128, 128], "scale_fmt": "ue8m0"},
            "fp8_e4m3[128x128]:ceil x fp8_e4m3[1x128]:ceil:dynamic",
        ),
        ({"scale_fmt": "float"}, "fp8_e4m3[*x*] x fp8_e4m3[1x*]:dynamic"),
        ({"fmt": "e5m2"}, "fp8_e5m2[*x*] x fp8_e5m2[1x*]:dynamic"),
    ],
)
def test_fields_make_the_scheme(block: dict[str, Any], expected: str) -> None:
    assert scheme(block) == expected


def test_spellings_and_absent_fields_mean_the_same() -> None:
    """S11 d, e."""
    block = {"weight_block_size": [128, 128], "activation_scheme": "dynamic"}
    for fmt in ("e4m3", "E4M3", "float8_e4m3fn", None):
        assert scheme({**block, "fmt": fmt}) == scheme(block)
    nulls = {"modules_to_not_convert": None, "ignored_layers": None, "scale_fmt": None}
    assert scheme({**block, **nulls, "activation_scheme": None}) == scheme(block)


@pytest.mark.parametrize("field", ["ignored_layers", "modules_to_not_convert"])
def test_lists_leave_layers_out(field: str) -> None:
    """S11 f; the source is the very entry."""
    block = {"weight_block_size": [128, 128], field: ["lm_head", "mlp.gate"]}
    assert decide(block).kind == "quantized"
    assert decide(block).source == "weight_block_size = [128, 128]"
    head = decide(block, "lm_head", "head")
    assert (head.kind, head.source) == ("unquantized", f"{field}[0] = 'lm_head'")
    assert decide(block, "model.layers.3.mlp.gate").source == f"{field}[1] = 'mlp.gate'"


def test_fused_and_shard_names() -> None:
    """S13, and a list that splits a fused layer."""
    stem = "model.layers.0"
    block = {"ignored_layers": [f"{stem}.mlp.gate_up_proj", f"{stem}.self_attn.qkv_proj"]}
    for name in ("mlp.gate_up_proj", "self_attn.qkv_proj", "self_attn.k_proj", "mlp.up_proj"):
        assert decide(block, f"{stem}.{name}").kind == "unquantized"
    assert decide(block, "model.layers.1.self_attn.qkv_proj").kind == "quantized"
    split = decide({"ignored_layers": [f"{stem}.mlp.gate_proj"]}, f"{stem}.mlp.gate_up_proj")
    assert split.error
    assert split.because.endswith(f"{stem}.mlp.up_proj: not listed)")


def test_fusion_of_the_model_is_honoured() -> None:
    config = Fp8Config.from_config({"ignored_layers": ["mlp.w1", "mlp.w3"]})
    facts = LayerFacts(prefix="model.layers.0.mlp.w13")
    assert config.scheme_for(facts).kind == "quantized"
    config.packed_modules_mapping = {"w13": ["w1", "w3"]}
    assert config.scheme_for(facts).kind == "unquantized"


def test_heads_embeddings_and_attention_stay_plain_by_default() -> None:
    assert decide({}, "lm_head", "head").because == (
        "the head is plain unless the file stores it quantized"
    )
    assert decide({}, "model.embed_tokens", "embedding").kind == "unquantized"
    attention = decide({"kv_cache_quant_algo": "FP8"}, "model.layers.0.self_attn", "attention")
    assert attention.because == "attention has no weights of its own"
    assert decide({}, "model.layers.0.mlp.experts", "experts").kind == "quantized"


@pytest.mark.parametrize(
    ("block", "text"),
    [
        (
            {"weight_block_size": [128, 128], "activation_scheme": "static"},
            r"activation_scheme is 'static'.\n  weight_block_size is \[128, 128\], and blocks go "
            "with dynamic activations\n  allowed: 'dynamic'",
        ),
        ({"activation_scheme": "none"}, "activation_scheme is 'none'.\n  allowed: 'dynamic', 'st"),
        ({"fmt": "e3m4"}, "fmt is 'e3m4'.\n  allowed: 'e4m3', "),
        ({"weight_block_size": [128]}, r"weight_block_size is \[128\]"),
        ({"weight_block_size": 128}, "weight_block_size is 128"),
        ({"scale_fmt": "e5m3"}, "scale_fmt is 'e5m3'.\n  allowed: 'ue8m0', "),
        ({"kv_cache_quant_algo": 8}, "kv_cache_quant_algo is 8"),
        ({"expert_dtype": "fp6"}, "expert_dtype is 'fp6'"),
        ({"modules_to_not_convert": "lm_head"}, "modules_to_not_convert is 'lm_head'"),
        ({"ignored_layers": ["re:(x"]}, r"ignored_layers\[0\] = 're:\(x' is no regular expression"),
    ],
)
def test_impossible_values_name_the_field(block: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        Fp8Config.from_config(block)


def test_unknown_fields_are_kept() -> None:
    config = Fp8Config.from_config({"quant_method": "fp8", "future": [1], "fmt": "e4m3"})
    assert config.extra == {"future": [1]}


@pytest.mark.parametrize(
    ("field", "value", "expected"),
    [
        ("kv_cache_quant_algo", "FP8", "fp8_e4m3[tensor]"),
        ("kv_cache_scheme", "auto", "None"),
        ("kv_cache_scheme", None, "None"),
    ],
)
def test_the_kv_cache_is_read(field: str, value: object, expected: str) -> None:
    config = Fp8Config.from_config({field: value})
    assert str(config.kv_cache_spec()) == expected
    assert config.notes() == () and config.extra == {}


def test_fp4_experts_are_another_format() -> None:
    decision = decide({"expert_dtype": "fp4"}, "model.layers.0.mlp.experts", "experts")
    assert (decision.kind, decision.source) == ("error", "expert_dtype = 'fp4'")
    assert decide({"expert_dtype": "fp4"}).kind == "quantized"


CONFIGS: dict[str, type[Fp8CheckpointConfig]] = {"fp8": Fp8Config, "fbgemm_fp8": FbgemmFp8Config}
EXPECTED = {
    "fp8": "fp8_e4m3[128x128] x fp8_e4m3[1x128]:dynamic",
    "fbgemm_fp8": "fp8_e4m3[1x*] x fp8_e4m3[1x*]:dynamic",
}


def test_published_configs_decide_rightly(shared: Path) -> None:
    """Every published fp8 block: a linear layer, each ignored layer, the head."""
    rows = json.loads((shared / "cases" / "real-configs.json").read_text())
    blocks = [
        (row["model"], row["config"]["quantization_config"])
        for row in rows
        if (row["config"].get("quantization_config") or {}).get("quant_method") in CONFIGS
    ]
    assert len(blocks) == 11
    for model, block in blocks:
        method = block["quant_method"]
        config = CONFIGS[method].from_config(block)
        linear = config.scheme_for(LayerFacts(prefix="model.layers.1.mlp.down_proj"))
        expected = parse_scheme(EXPECTED[method])
        if block.get("scale_fmt") == "ue8m0":
            expected = parse_scheme("fp8_e4m3[128x128]:ceil x fp8_e4m3[1x128]:ceil:dynamic")
        assert linear.scheme == expected, model
        assert config.scheme_for(LayerFacts(prefix="lm_head", kind="head")).kind == "unquantized"
        for index, name in enumerate(block.get("modules_to_not_convert") or []):
            decision = config.scheme_for(LayerFacts(prefix=name))
            assert decision.source == f"modules_to_not_convert[{index}] = {name!r}", model
        assert config.unmatched() == (), model


@pytest.mark.parametrize(
    "folder", ["fp8block-128x128", "fp8tensor-d128", "fp8block-qwen3moe-64x64", "fp8block-mixtral"]
)
def test_third_party_weights_decode_bit_for_bit(shared: Path, folder: str) -> None:
    path = shared / "models" / folder
    block = json.loads((path / "config.json").read_text())["quantization_config"]
    tensors = load_file(path / "model.safetensors")
    golden = load_file(path / "golden.safetensors")
    config = Fp8Config.from_config(block)
    names = [name.removeprefix("dequant.") for name in golden if name.startswith("dequant.")]
    assert len(names) == 2
    for name in names:
        prefix = name.removesuffix(".weight")
        under = {n[len(prefix) + 1 :]: t for n, t in tensors.items() if n.startswith(f"{prefix}.")}
        stored = {
            last: StoredTensor(dtype=str(t.dtype).removeprefix("torch."), shape=tuple(t.shape))
            for last, t in under.items()
        }
        facts = LayerFacts(prefix=prefix, stored=stored)
        found = config.scheme_for(facts).scheme
        assert found is not None and found.weight == config.specs[0]
        n, k = under["weight"].shape
        shard = {
            slot.name: under[next(s for s in slot.spellings if s in under)]
            for slot in config.slots(found, n, k, facts)
        }
        dense = config.decode(found, [shard], facts).dequantize()
        assert (dense == golden[f"dequant.{name}"]).all(), name
    assert config.notes() == ()


@pytest.mark.parametrize("block", [{}, {"weight_block_size": [128, 128]}])
def test_a_contradiction_names_the_field_it_contradicts(block: dict[str, Any]) -> None:
    shape = (2, 1) if block else ()
    stored = {
        "weight": StoredTensor(dtype="float8_e4m3fn", shape=(256, 128)),
        "weight_scale": StoredTensor(dtype="float32", shape=shape),
    }
    for word, notes in (("e5m2", ["though fmt = 'e5m2';"]), ("e4m3", [])):
        config = Fp8Config.from_config({"fmt": word, **block})
        config.scheme_for(LayerFacts(prefix=LINEAR, stored=stored))
        assert [note for note in config.notes() for text in notes if text in note] == list(
            config.notes()
        )
        assert len(config.notes()) == len(notes)
