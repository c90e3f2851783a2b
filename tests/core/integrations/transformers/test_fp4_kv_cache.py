"""A model that keeps keys and values in fp4: what it says, what it holds, what it generates."""

from __future__ import annotations

import json
import shutil

import pytest
import torch

import quantdock
from demo.models import TINY_LLAMA
from model_outputs import IDS, logits
from quantdock.errors import ConfigError
from toy_files import edit_config, edit_tensors


@pytest.fixture
def folder():
    return TINY_LLAMA


def test_the_plan_says_what_a_token_takes(folder):
    plan = quantdock.load(folder, "none", device="cpu", kv_cache="fp4").quantdock_plan
    plain = quantdock.explain(folder, platform="cpu").attention[0]
    for layer in (*plan.attention, *quantdock.explain(folder, kv_cache="fp4").attention):
        assert layer.scheme == "fp4_e2m1[group]:dynamic"
        assert layer.bytes_per_token == plain.bytes_per_token * 9 // 32  # 4.5 bits for 16
        assert layer.because.endswith("each 16 numbers of a token and head have one")


def test_text_stays_close(folder):
    plain, model = (
        quantdock.load(folder, "none", device="cpu", kv_cache=word) for word in ("none", "fp4")
    )
    found, expected = logits(model).log_softmax(-1), logits(plain).log_softmax(-1)
    divergence = (expected.exp() * (expected - found)).sum(-1).mean()
    assert 0 < divergence < 0.02


@pytest.mark.parametrize("options", [{}, {"num_beams": 2}, {"cache_implementation": "static"}])
def test_it_generates_and_holds_what_it_said(folder, options):
    model = quantdock.load(folder, "none", device="cpu", kv_cache="fp4")
    made = model.generate(IDS, max_new_tokens=8, do_sample=False, **options)
    assert made.shape == (1, IDS.shape[1] + 8)
    cache = model.quantdock_kv_cache.new()
    with torch.no_grad():
        model(input_ids=IDS, cache=cache)
    tokens = 64  # the least room
    layer = model.quantdock_plan.attention[0]
    assert cache.layers[0].num_bytes == tokens * layer.bytes_per_token


def test_a_prompt_in_pieces_is_the_same(folder):
    model = quantdock.load(folder, "none", device="cpu", dtype="float32", kv_cache="fp4")
    cache = model.quantdock_kv_cache.new()
    with torch.no_grad():
        parts = [model(input_ids=p, cache=cache).logits for p in IDS.split(10, dim=1)]
    torch.testing.assert_close(torch.cat(parts, dim=1), logits(model), rtol=1e-4, atol=1e-4)


def test_heads_of_another_width_are_refused(shared):
    folder = shared / "models" / "bases" / "stories260k-d128"  # heads of 8 numbers
    for run in (quantdock.load, quantdock.explain):
        with pytest.raises(ConfigError, match=r"groups of 16 numbers.* have 16 together"):
            run(folder, kv_cache="fp4")


@pytest.fixture
def nvfp4_folder(make_toy, tmp_path):
    """Return a ModelOpt file that asks for keys and values in NVFP4, with scales that differ."""
    folder = make_toy(head_dim=32, num_attention_heads=4, num_key_value_heads=2)
    target = quantdock.convert_checkpoint(folder, tmp_path / "modelopt", "modelopt").target
    block = json.loads((target / "config.json").read_text())["quantization_config"]
    edit_config(target, quantization_config={**block, "kv_cache_quant_algo": "NVFP4"})
    scales = {
        f"model.layers.{index}.self_attn.{kind}_proj.{kind}_scale": torch.tensor(value)
        for index in range(2)
        for kind, value in (("k", 0.003), ("v", 0.001 * (index + 1)))
    }
    edit_tensors(target, lambda tensors: tensors.update(scales))
    return target


def test_a_file_that_asks_for_nvfp4_gets_it_under_its_scales(nvfp4_folder):
    model = quantdock.load(nvfp4_folder, device="cpu", dtype="float32")
    for layer in model.quantdock_plan.attention:
        assert layer.scheme == "fp4_e2m1[group]:second[tensor]" and layer.warnings == ()
        assert layer.source == "kv_cache_quant_algo"
    kept = model.get_submodule("model.layers.1.self_attn").kv_scales
    assert (kept.k.value, kept.v.value) == pytest.approx((0.003, 0.002))
    plain = quantdock.load(nvfp4_folder, device="cpu", dtype="float32", kv_cache="none")
    found, expected = logits(model).log_softmax(-1), logits(plain).log_softmax(-1)
    assert not torch.equal(found, expected)
    assert 0 < (expected.exp() * (expected - found)).sum(-1).mean() < 0.02
    made = model.generate(IDS, max_new_tokens=4, do_sample=False)
    assert made.shape == (1, IDS.shape[1] + 4)
    with pytest.raises(quantdock.QuantDockError, match="keys and values have scales of their own"):
        model.save_pretrained(nvfp4_folder / "again")


def test_scales_that_a_file_lacks_are_told(nvfp4_folder):
    edit_tensors(nvfp4_folder, lambda t: [t.pop(n) for n in [*t] if n.endswith("k_scale")])
    for plan in (
        quantdock.explain(nvfp4_folder, platform="cpu"),
        quantdock.load(nvfp4_folder, device="cpu").quantdock_plan,
    ):
        (warning,) = plan.attention[0].warnings
        assert warning.startswith("the checkpoint stores no scale of the keys")


def test_heads_without_whole_groups_stay_in_the_models_dtype(shared, tmp_path):
    source = shared / "models" / "modelopt-nvfp4-w4a16"  # heads of 8 numbers
    folder = shutil.copytree(source, tmp_path / "in")
    block = json.loads((folder / "config.json").read_text())["quantization_config"]
    edit_config(folder, quantization_config={**block, "kv_cache_scheme": "NVFP4"})
    for plan in (
        quantdock.explain(folder, platform="cpu"),
        quantdock.load(folder, device="cpu").quantdock_plan,
    ):
        layer = plan.attention[0]
        assert layer.decision == "unquantized"
        assert layer.because.endswith(
            "share a scale; in a head of this model they have 16 together"
        )
