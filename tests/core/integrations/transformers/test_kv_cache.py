"""``quantdock.load(..., kv_cache=...)``: what is read, what is said, what is refused."""

from __future__ import annotations

import logging

import pytest
import torch

import quantdock
import toy_llava
from quantdock.errors import ConfigError, LoadError, MismatchError, NothingQuantizedError
from quantdock.integrations.transformers.cache_layers import QuantizedLayer
from quantdock.layers import ParallelGroup
from toy_llama import BLOCK, DOWN, IDS, LAYER, K, V, llama, load, logits, write

ATTENTION = f"{LAYER}.self_attn"
PROMISE = {**BLOCK, "kv_cache_scheme": {"type": "float", "num_bits": 8}}


def make(folder, block=PROMISE, **scales):
    stored = {f"{ATTENTION}.{name}": torch.as_tensor(value) for name, value in scales.items()}
    return write(folder, llama("128x128") | stored, block)


def row(model):
    (found,) = model.quantdock_plan.attention
    return found


def scales(model):
    return model.get_submodule(ATTENTION).kv_scales


def test_scales_are_a_tensor_and_a_number(tmp_path):
    model = load(make(tmp_path, k_scale=0.25, v_scale=0.5))
    assert scales(model).k.tensor.tolist() == scales(model).k.value == 0.25
    assert scales(model).v.value == 0.5
    assert (row(model).scheme, row(model).bytes_per_token) == ("fp8_e4m3[tensor]", 256)
    assert model.quantdock_plan.unused == ()
    assert "KV cache in fp8_e4m3[tensor]" in model.quantdock_plan.summary()


def test_every_head_may_have_its_own(tmp_path):
    model = load(make(tmp_path, k_scale=torch.tensor([0.25, 0.5]), v_scale=0.5))
    assert scales(model).k.tensor.tolist() == [0.25, 0.5]
    assert row(model).scheme == "fp8_e4m3[head]"
    assert logits(model).isfinite().all()
    with pytest.raises(LoadError, match=r"k_scale has 3 scales"):
        load(make(tmp_path, k_scale=torch.ones(3), v_scale=0.5))


def test_a_large_scale_is_really_used(tmp_path):
    """With a scale of 2^20 every key and value rounds to zero, so attention adds nothing."""
    model = load(make(tmp_path, k_scale=2.0**20, v_scale=2.0**20))
    plain = load(make(tmp_path / "2", BLOCK))
    for name in (K, V):
        plain.get_submodule(name).weight.data.zero_()
    assert torch.equal(logits(model), logits(plain))


def test_stored_scales_without_a_word_are_used(tmp_path):
    model = load(make(tmp_path, BLOCK, k_scale=0.25, v_scale=0.5))
    assert scales(model).k.value == 0.25
    assert row(model).because == "the checkpoint stores scales of keys and values"
    assert row(model).source == "the file's headers"


def test_none_says_so_in_the_plan(tmp_path):
    model = load(make(tmp_path, k_scale=0.25, v_scale=0.5), kv_cache="none")
    assert (row(model).decision, row(model).source) == ("unquantized", "kv_cache = 'none'")
    assert "although the checkpoint asks for keys and values in float8" in row(model).because
    assert row(model).bytes_per_token == 2 * 128 * 4
    assert not hasattr(model, "quantdock_kv_cache")
    assert sorted(model.quantdock_plan.unused) == [
        f"{ATTENTION}.{n}" for n in ("k_scale", "v_scale")
    ]


def test_decoding_the_weights_leaves_keys_alone_too(tmp_path):
    model = load(make(tmp_path, k_scale=0.25, v_scale=0.5), "none")
    assert (row(model).decision, row(model).source) == ("unquantized", "quantization = 'none'")


def test_another_element_has_scales_of_its_own(tmp_path):
    model = load(make(tmp_path, k_scale=0.25, v_scale=0.5), kv_cache="int8")
    assert (scales(model).k, scales(model).v) == (None, None)
    assert row(model).scheme == "int8[token]:dynamic"
    assert any("kept as int8[token]:dynamic" in note for note in model.quantdock_plan.notes)


def test_missing_scales_are_logged_as_well(tmp_path, caplog):
    with caplog.at_level(logging.WARNING, "quantdock"):
        model = load(make(tmp_path))
    assert "stores no scales for them: 1.0 is used" in caplog.text
    assert (scales(model).k.value, scales(model).v.value) == (1.0, 1.0)


def test_integers_without_a_scale_compute_one(tmp_path):
    block = {**BLOCK, "kv_cache_quant_algo": "INT8"}
    model = load(make(tmp_path, block))
    assert row(model).scheme == "int8[token]:dynamic"
    assert "each token and head gets one" in model.quantdock_plan.warnings[-1]
    assert logits(model).isfinite().all()


def test_a_scale_that_no_attention_takes_is_an_error(tmp_path):
    tensors = llama("128x128") | {f"{DOWN}.k_scale": torch.tensor(1.0)}
    with pytest.raises(LoadError, match=rf"belong to no attention layer.*\n  {DOWN}\.k_scale"):
        load(write(tmp_path, tensors, PROMISE))


def test_16_bit_checkpoints_can_have_a_cache_of_codes(make_toy):
    model = quantdock.load(make_toy(), device="cpu", kv_cache="fp8")
    plan = model.quantdock_plan
    assert [layer.scheme for layer in plan.attention] == ["fp8_e4m3[token]:dynamic"] * 2
    assert plan.kv_bytes_per_token == 2 * 2 * (128 + 8)
    assert model.generate(input_ids=IDS, max_new_tokens=4, do_sample=False).shape[1] <= 21


def test_latent_attention_keeps_keys_wider_than_values(make_toy):
    sizes = {"q_lora_rank": 32, "kv_lora_rank": 16, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8}
    fields = {"v_head_dim": 16, "head_dim": 8, "num_key_value_heads": 4, "first_k_dense_replace": 9}
    folder = make_toy("deepseek_v3", **sizes, **fields)
    model = quantdock.load(folder, device="cpu", kv_cache="int8")
    assert model.quantdock_plan.attention[0].bytes_per_token == 4 * (24 + 16 + 8)
    assert logits(model).isfinite().all()
    assert isinstance(model.quantdock_kv_cache.new().layers[0], QuantizedLayer)


def test_a_wrong_word_is_refused(make_toy):
    with pytest.raises(ConfigError, match=r"kv_cache='fp9' is not known\.\n  known: auto, none"):
        quantdock.load(make_toy(), device="cpu", kv_cache="fp9")


def test_a_model_without_keys_is_refused(make_toy):
    sizes = {"hidden_size": 32, "state_size": 4, "num_hidden_layers": 1, "vocab_size": 64}
    folder = make_toy("mamba", **sizes)
    with pytest.raises(NothingQuantizedError, match=r"no layer of this model can[\s\S]*keeps any"):
        quantdock.load(folder, device="cpu", kv_cache="fp8")


def test_a_reload_brings_its_own_scales(tmp_path):
    model = load(make(tmp_path / "1", k_scale=0.25, v_scale=0.5))
    other = make(tmp_path / "2", k_scale=0.125, v_scale=0.5)
    quantdock.reload(model, other)
    assert scales(model).k.value == 0.125
    assert torch.equal(logits(model), logits(load(other)))
    assert len(model._forward_pre_hooks) == 1
    with pytest.raises(MismatchError, match=r"keeps keys and values in fp8_e4m3, .* model's dtype"):
        quantdock.reload(model, make(tmp_path / "3", BLOCK))


def test_a_rank_has_the_scales_of_its_heads(tmp_path):
    folder = make(tmp_path, k_scale=torch.tensor([0.25, 0.5]), v_scale=0.5)
    for rank, expected in enumerate((0.25, 0.5)):
        model = load(folder, tp=ParallelGroup(rank=rank, size=2))
        assert (scales(model).k.value, scales(model).v.value) == (expected, 0.5)
        assert row(model).bytes_per_token == 128


def test_a_language_model_behind_a_tower_is_found_by_its_older_names(tmp_path):
    prefix = toy_llava.in_file(ATTENTION)
    stored = {f"{prefix}.{name}": torch.tensor(0.25) for name in ("k_scale", "v_scale")}
    block = {**PROMISE, "modules_to_not_convert": ["vision_tower", "multi_modal_projector"]}
    model = load(toy_llava.write(tmp_path, toy_llava.tensors("128x128") | stored, block))
    assert [layer.prefix for layer in model.quantdock_plan.attention] == [prefix]
    assert model.get_submodule(toy_llava.at_run_time(ATTENTION)).kv_scales.k.value == 0.25
    assert model.quantdock_plan.unused == ()
    assert type(model.quantdock_kv_cache.new().layers[0]) is QuantizedLayer
    assert logits(model).isfinite().all()
