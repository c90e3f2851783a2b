"""Mixtures of experts in the field, in NVFP4: S08 and S41; scattered files: S48."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM

import quantdock
from quantdock.errors import ConfigError, LoadError
from tests.toy_files import edit_tensors
from tests.toy_fp4 import is_expert, is_linear, nvfp4, rewrite

torch.set_num_threads(1)
IDS = torch.arange(3, 40)[None]  # many tokens, so that all experts are reached
EXPERT = "model.layers.0.mlp.experts.2"
BLOCK = {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head"]}
ALL = ("gate_proj", "up_proj", "down_proj")


def toy(folder: Path, block=BLOCK, choose=None) -> Path:
    """Write a mixture of four experts in NVFP4; return a plain folder of the same weights."""
    torch.manual_seed(5)
    config = AutoConfig.for_model(
        "qwen3_moe",
        hidden_size=256,
        intermediate_size=512,
        moe_intermediate_size=128,
        num_experts=4,
        num_experts_per_tok=2,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        vocab_size=320,
        tie_word_embeddings=False,
    )
    AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).save_pretrained(folder)

    def usual(layer: str):
        return nvfp4 if is_expert(layer) or is_linear(layer) else None

    return rewrite(folder, block, choose or usual)


def logits(folder: Path, quantization: str | None = None) -> torch.Tensor:
    model = quantdock.load(folder, quantization, device="cpu", dtype="float32")
    with torch.no_grad():
        return model(input_ids=IDS).logits


def test_s08_an_expert_that_was_never_calibrated(tmp_path):
    plain = toy(tmp_path / "m")

    def lose(tensors):
        for weight in ALL:
            del tensors[f"{EXPERT}.{weight}.input_scale"]

    edit_tensors(tmp_path / "m", lose)
    with pytest.raises(LoadError) as caught:
        logits(tmp_path / "m")
    assert all(f"{EXPERT}.{weight}.input_scale" in str(caught.value) for weight in ALL)
    plan = quantdock.explain(tmp_path / "m", "cpu:generic")
    assert any("loading would stop: input_scale is missing" in text for text in plan.warnings)
    expected = logits(plain, "none")
    for weights_alone in ("petit_nvfp4", "none"):
        assert (logits(tmp_path / "m", weights_alone) - expected).abs().max() < 1e-4


@pytest.mark.parametrize(("value", "kind"), [(0.0, "1 of 1 zero"), (torch.inf, "1 of 1 infinite")])
def test_s08_a_scale_that_was_never_set(tmp_path, value, kind):
    toy(tmp_path / "m")
    name = f"{EXPERT}.up_proj.input_scale"
    edit_tensors(tmp_path / "m", lambda tensors: tensors[name].fill_(value))
    with pytest.raises(LoadError) as caught:
        logits(tmp_path / "m")
    assert f"scale of the input: {kind}" in str(caught.value)
    assert name in str(caught.value) and caught.value.names == (name,)
    assert logits(tmp_path / "m", "petit_nvfp4").isfinite().all()


@pytest.mark.parametrize("quantization", [None, "petit_nvfp4", "none"])
@pytest.mark.parametrize("tensor", ["weight_scale", "weight_scale_2"])
def test_s08_scales_of_weights_are_always_needed(tmp_path, quantization, tensor):
    toy(tmp_path / "m")
    name = f"{EXPERT}.down_proj.{tensor}"
    edit_tensors(tmp_path / "m", lambda tensors: tensors.pop(name))
    with pytest.raises(LoadError, match=name.replace(".", r"\.")):
        logits(tmp_path / "m", quantization)


def test_s41_the_experts_of_one_layer_are_left_out(tmp_path):
    block = {**BLOCK, "ignore": ["lm_head", "model.layers.1.mlp.experts*"]}

    def choose(layer: str):
        is_left = layer.startswith("model.layers.1.mlp.experts")
        return None if is_left or not (is_expert(layer) or is_linear(layer)) else nvfp4

    plain = toy(tmp_path / "m", block, choose)
    model = quantdock.load(tmp_path / "m", device="cpu", dtype="float32")
    rows = [layer for layer in model.quantdock_plan.layers if layer.kind == "experts"]
    assert [row.decision for row in rows] == ["quantized", "unquantized"]
    assert model.quantdock_plan.ignore_unmatched == ()
    expected = logits(plain, "none")
    assert (logits(tmp_path / "m", "petit_nvfp4") - expected).abs().max() < 1e-4


def test_s48_each_kind_of_tensor_in_its_own_file(tmp_path):
    toy(tmp_path / "m")
    expected = logits(tmp_path / "m")
    tensors = load_file(tmp_path / "m" / "model.safetensors")
    kinds = ("weight", "weight_scale", "weight_scale_2", "input_scale")
    by_kind = {kind: {n: t for n, t in tensors.items() if n.endswith(f".{kind}")} for kind in kinds}
    assert sum(map(len, by_kind.values())) == len(tensors)
    for number, order in enumerate(list(itertools.permutations(kinds))[::5]):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "config.json").write_bytes((tmp_path / "m" / "config.json").read_bytes())
        table = {}
        for index, kind in enumerate(order, 1):
            file = f"model-{index:05}-of-00004.safetensors"
            save_file(by_kind[kind], folder / file, metadata={"format": "pt"})
            table |= dict.fromkeys(by_kind[kind], file)
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": table}))
        assert torch.equal(logits(folder), expected)


@pytest.mark.parametrize(
    "listed", ["model.layers.0.mlp.experts", "re:.*0.mlp.*", "*.0.block_sparse_moe.*"]
)
def test_lists_may_use_the_model_s_names_or_the_file_s_in_every_plan(shared, listed):
    """Files of Mixtral call its module block_sparse_moe, and models mlp."""
    folder = shared / "models" / "bases" / "stories260k-mixtral-d128"
    options = {"quantization": "fp8", "ignore": [listed]}
    planned = quantdock.explain(folder, platform="cpu", **options)
    loaded = quantdock.load(folder, device="cpu", **options).quantdock_plan
    assert planned.ignore_unmatched == loaded.ignore_unmatched == ()
    plain = {layer.prefix for layer in planned.layers if layer.decision == "unquantized"}
    assert {f"model.layers.0.block_sparse_moe.experts.{e}.w1" for e in range(4)} < plain
    assert not any(".layers.1." in prefix and "experts" in prefix for prefix in plain)


def test_routers_that_lists_name_as_models_do_are_no_entries_that_match_nothing(shared):
    folder = shared / "models" / "autoround-mixtral-gptq-w4"
    assert quantdock.explain(folder, platform="cpu").ignore_unmatched == ()


@pytest.mark.parametrize(
    ("ignore", "what"),
    [(["*.gate_proj"], "the experts of one layer differ"), (["*.down_proj"], "w13 is quantized (")],
)
def test_a_list_that_tears_experts_apart_is_what_is_told(shared, ignore, what):
    """Not the file, which stores them alike."""
    folder = shared / "models" / "bases" / "qwen3moe-random"
    plan = quantdock.explain(folder, platform="cpu", quantization="fp8", ignore=ignore)
    layer = next(layer for layer in plan.layers if layer.decision == "error")
    assert what in layer.because
    assert set(layer.source.split(" and ")) == {
        f"ignore[0] = {ignore[0]!r}",
        "quantization = 'fp8'",
    }
    with pytest.raises(ConfigError, match=r"decided by .*ignore\[0\]"):
        quantdock.load(folder, "fp8", device="cpu", ignore=ignore)
