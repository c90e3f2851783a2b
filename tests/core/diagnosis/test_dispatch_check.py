"""Check 4 finds lists that name nothing, and layers that are not what one would expect."""

from __future__ import annotations

import pytest

import toy_llama as toy
from demo.models import TINY_LLAMA
from examined import noted, statuses, told
from quantdock import doctor
from toy_files import edit_tensors, write_block_checkpoint


def test_an_entry_that_matches_nothing_is_found(examine):
    block = {**toy.BLOCK, "modules_to_not_convert": ["lm_head", "model.layers.7.mlp"]}
    report = examine(block=block, quick=True)
    assert report["dispatch"].status == "warn"
    assert told(report, "dispatch").splitlines()[0] == (
        "modules_to_not_convert[1] = 'model.layers.7.mlp' matches no layer."
    )
    assert "'lm_head'" not in told(report, "dispatch")


@pytest.mark.parametrize("architectures", [["LlamaForCausalLM"], ["GPT2LMHeadModel"], None])
def test_a_head_that_loading_ties_is_matched(examine, architectures):
    """Where config.json states no architecture, loading builds a causal model."""
    block = {**toy.BLOCK, "modules_to_not_convert": ["lm_head"]}
    fields = {"architectures": architectures, "tie_word_embeddings": True}
    report = examine(lambda t: t.pop("lm_head.weight"), block=block, fields=fields, quick=True)
    assert report["dispatch"].status == "pass"
    assert report["dispatch"].details["layers"]["lm_head"] == ""


def test_a_layer_left_plain_among_quantized_ones_is_found(tmp_path):
    folder = write_block_checkpoint(TINY_LLAMA, tmp_path / "block")
    name = "model.layers.2.mlp.up_proj"

    def forget(tensors):
        del tensors[f"{name}.weight_scale_inv"]
        tensors[f"{name}.weight"] = tensors[f"{name}.weight"].bfloat16()

    edit_tensors(folder, forget)
    report = doctor(folder, platform="cpu", quick=True)
    assert report["dispatch"].status == "warn"
    text = told(report, "dispatch")
    assert f"{name}: plain (the file stores it as bfloat16, the file's headers)" in text
    assert "3 of 4 model.layers.*.mlp.up_proj are not" in text
    assert "model.layers.2.mlp: gate_proj is quantized and up_proj is not, in one mlp" in text
    assert "The JSON and the tensors differ: model.layers.*.mlp.up_proj is stored as" in text


def test_a_layer_that_a_list_leaves_plain_is_only_noted():
    report = doctor(
        TINY_LLAMA, "fp8_per_block", platform="cpu", ignore=["layers.0.mlp.down_proj"], quick=True
    )
    assert report["dispatch"].status == "pass"
    assert "model.layers.0.mlp.down_proj: plain (the user leaves it as it is, ignore[0]" in noted(
        report, "dispatch"
    )


def test_a_quantized_head_router_and_embedding_are_found(examine):
    def quantize_all(tensors):
        for name in (toy.HEAD, toy.EMBEDDING):
            tensors |= toy.encoded(name, tensors[f"{name}.weight"], "128x128")
        router = f"{toy.LAYER}.mlp.gate"
        tensors |= toy.encoded(router, tensors[f"{toy.Q}.weight"].float(), "128x128")

    report = examine(quantize_all, quick=True)
    text = told(report, "dispatch")
    assert "lm_head: a quantized head" in text
    assert "model.embed_tokens: a quantized embedding" in text
    assert "model.layers.0.mlp.gate: a quantized router" in text


def test_tensors_that_contradict_the_list_are_found(examine):
    block = {**toy.BLOCK, "modules_to_not_convert": ["mlp.down_proj"]}
    report = examine(block=block, quick=True)
    assert "The JSON and the tensors differ: model.layers.*.mlp.down_proj is stored as" in told(
        report, "dispatch"
    )


def test_nothing_quantized_is_found(examine):
    report = examine(tile=None, quick=True)
    assert report["dispatch"].status == "fail"
    text = told(report, "dispatch")
    assert "fp8 was asked for, and no layer of this checkpoint would be quantized." in text
    assert "Load with quantization='none'" in text


def test_a_requirement_that_nothing_needs_is_found(examine):
    report = examine(block=None, tile=None, quick=True, require="reference")
    assert report["dispatch"].status == "fail"
    text = told(report, "dispatch")
    assert "The kernel reference was required, and no layer would be quantized." in text


def test_a_scale_that_nothing_reads_is_found(examine):
    def add(tensors):
        tensors[f"{toy.Q}.qzeros"] = tensors[f"{toy.Q}.weight_scale_inv"].clone()

    report = examine(add, quick=True)
    assert statuses(report)["dispatch"] == "fail"
    assert f"{toy.Q}: qzeros is stored, and nothing takes it." in told(report, "dispatch")


def test_a_layer_that_a_list_tears_apart_is_found(examine):
    def fuse(tensors):
        tensors[f"{toy.LAYER}.self_attn.qkv_proj.weight"] = tensors.pop(f"{toy.Q}.weight")

    report = examine(
        fuse, None, tile=None, quantization="fp8_per_block", ignore=["q_proj"], quick=True
    )
    assert statuses(report)["dispatch"] == "fail"
    text = told(report, "dispatch")
    assert f"{toy.LAYER}.self_attn.qkv_proj cannot be built." in text
    assert "q_proj" in text and "k_proj" in text
