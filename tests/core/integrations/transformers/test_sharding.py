"""Whole models divided among ranks: every architecture's own plan, and the same logits."""

from __future__ import annotations

import pytest
import torch
import transformers

import quantdock
from quantdock import ParallelGroup
from quantdock.errors import ConfigError, LoadError, SaveError
from quantdock.layers import (
    ColumnParallelLinear,
    LinearBase,
    ParallelLMHead,
    RowParallelLinear,
)
from toy_llama import (
    BLOCK,
    DOWN,
    EMBEDDING,
    GATE,
    HEAD,
    OUT,
    STATIC,
    TENSOR,
    K,
    Q,
    llama,
    load,
    with_input_scales,
    write,
)
from toy_ranks import in_threads, relative, weight_of

IDS = torch.arange(3, 20)[None]
COMMON = {
    "vocab_size": 203,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
GROUPED = {**COMMON, "num_key_value_heads": 2}
LATENT = {
    **COMMON,
    "num_key_value_heads": 4,
    "moe_intermediate_size": 32,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "kv_lora_rank": 16,
    "q_lora_rank": 24,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 16,
    "v_head_dim": 16,
    "first_k_dense_replace": 1,
}
# What each plan has that others have not: biases; gathered and split layers (fused qkv); norms of
# heads and of all heads; a scaled embedding; experts; latent attention.
MODELS = {
    "Llama": {**GROUPED, "attention_bias": True, "mlp_bias": True},
    "Phi3": GROUPED,
    "Qwen3": {**GROUPED, "head_dim": 16},
    "Olmo2": GROUPED,
    "Gemma3Text": {**GROUPED, "head_dim": 16},
    "Mixtral": {**GROUPED, "num_local_experts": 4},
    "GPTNeoX": COMMON,
    "DeepseekV2": LATENT,
}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """Return a function that writes a random model of one architecture, each once."""
    folders = {}

    def make(name):
        if name not in folders:
            torch.manual_seed(0)
            config = getattr(transformers, f"{name}Config")(**MODELS[name])
            model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
            for parameter in model.parameters():
                torch.nn.init.normal_(parameter, std=0.1 if parameter.dim() > 1 else 0.5)
            folders[name] = tmp_path_factory.mktemp(name)
            model.save_pretrained(folders[name])
        return folders[name]

    return make


def logits(folder, method, tp=None):
    model = load(folder, method, tp=tp)
    with torch.no_grad():
        return model(input_ids=IDS).logits


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("name", MODELS)
def test_every_rank_has_the_logits_of_one(checkpoint, name, size):
    """With 4 ranks and 2 heads of keys, ranks share heads."""
    folder = checkpoint(name)
    expected = logits(folder, "none")
    found = in_threads(size, lambda group: logits(folder, "none", group))
    assert all(torch.equal(other, found[0]) for other in found)
    assert relative(found[0], expected) < 1e-5


@pytest.mark.parametrize("method", ["fp8_per_tensor", "fp8_per_channel", "fp8_per_block", "mxfp8"])
def test_quantized_at_load_the_weights_are_those_of_one_rank(checkpoint, method):
    check_parts(checkpoint("Llama"), method, 2)


@pytest.mark.parametrize(
    ("block", "tile"), [(BLOCK, "128x128"), (TENSOR, "*x*"), (TENSOR, "1x*"), (STATIC, "*x*")]
)
def test_a_serialized_checkpoint_whose_blocks_are_cut(tmp_path, block, tile):
    tensors = llama(tile, 320)
    tensors = with_input_scales(tensors, 0.01) if block is STATIC else tensors
    folder = write(tmp_path, tensors, block, intermediate_size=320)
    check_parts(folder, None, 4)
    decoded = in_threads(4, lambda group: logits(folder, "none", group))
    assert relative(decoded[0], logits(folder, "none")) < 1e-5
    if block is STATIC:  # one scale for all activations, however they are divided
        found = in_threads(4, lambda group: logits(folder, None, group))
        assert relative(found[0], logits(folder, None)) < 0.02


@pytest.mark.parametrize(("size", "cuts"), [(2, [128, 192]), (4, [64, 64, 64, 128])])
def test_blocks_are_dealt_out_whole_while_there_are_enough(tmp_path, size, cuts):
    """320 in blocks of 128: two ranks get one and two; four get parts of 64."""
    folder = write(tmp_path, llama("128x128", 320), BLOCK, intermediate_size=320)
    models = [one_of(size, folder, rank=rank) for rank in range(size)]
    assert [model.get_submodule(GATE).out_features for model in models] == cuts
    assert [model.get_submodule(DOWN).in_features for model in models] == cuts
    if size == 2:  # no group of activations is cut, so only the order of sums differs
        found = in_threads(size, lambda group: logits(folder, None, group))
        assert relative(found[0], logits(folder, None)) < 0.01


def test_layers_of_one_size_are_cut_alike_whatever_their_blocks(tmp_path):
    folder = write(tmp_path, llama(None, 320), intermediate_size=320)
    choices = {"*.down_proj": "mxfp8", "*.gate_proj": "none"}
    model = one_of(2, folder, "fp8_per_block", rank=0, choices=choices)
    assert model.get_submodule(GATE).out_features == model.get_submodule(DOWN).in_features == 128


def check_parts(folder, method, size):
    """Check each weight bit for bit; logits differ by what rounding activations differs."""
    one = load(folder, method)
    ranks = [one_of(size, folder, method, rank) for rank in range(size)]
    for name, layer in one.named_modules():
        if isinstance(layer, LinearBase):
            dimension = int(isinstance(ranks[0].get_submodule(name), RowParallelLinear))
            parts = [weight_of(rank.get_submodule(name)) for rank in ranks]
            held = sum(part.shape[dimension] for part in parts)
            step = held // weight_of(layer).shape[dimension]  # above 1 where ranks share heads
            assert torch.equal(torch.cat(parts[::step], dimension), weight_of(layer)), name
    found = in_threads(size, lambda group: logits(folder, method, group))
    assert relative(found[0], logits(folder, method)) < 0.1


def one_of(size, folder, method=None, rank=1, **options):
    return load(folder, method, tp=ParallelGroup(rank=rank, size=size), **options)


def test_the_plan_of_a_rank_says_its_parts(tmp_path):
    folder = write(tmp_path, llama("128x128", 320), BLOCK, intermediate_size=320)
    plan = one_of(4, folder, rank=1).quantdock_plan
    assert (plan.rank, plan.ranks) == (1, 4)
    layers = {layer.prefix: layer for layer in plan.layers}
    shards = {name: layers[name].shard for name in (Q, K, OUT, GATE, DOWN, EMBEDDING, HEAD)}
    assert shards == {
        Q: "rows 64-127 of 256",
        K: "rows 0-63 of 128",
        OUT: "columns 64-127 of 256",
        GATE: "rows 64-127 of 320",
        DOWN: "columns 64-127 of 320",
        EMBEDDING: "rows 80-159 of 320",
        HEAD: "rows 80-159 of 320",
    }
    assert layers[DOWN].scheme == "fp8_e4m3[128x64] x fp8_e4m3[1x64]:dynamic"
    assert (layers[DOWN].n, layers[DOWN].k) == (256, 64)
    assert layers[GATE].scheme == "fp8_e4m3[128x128] x fp8_e4m3[1x128]:dynamic"
    assert ", rank 1 of 4: 7 of 9 layers quantized" in plan.summary()
    assert any("rank 1 of 4 has no process group" in warning for warning in plan.warnings)
    assert quantdock.Plan.from_json(plan.to_json()) == plan
    assert plan.kv_bytes_per_token == 1 * 2 * 64 * 4, "one head of keys and values, float32"


def test_layers_are_those_that_their_plan_names(tmp_path):
    model = one_of(2, write(tmp_path, llama()), "fp8_per_channel")
    kinds = {Q: ColumnParallelLinear, DOWN: RowParallelLinear, HEAD: ParallelLMHead}
    assert {name: type(model.get_submodule(name)) for name in kinds} == kinds
    assert model.get_submodule(HEAD).weight.shape == (160, 256)
    total = sum(p.numel() for p in model.parameters())
    assert total < 0.51 * sum(p.numel() for p in load(tmp_path, "fp8_per_channel").parameters())


def test_sizes_that_do_not_divide_are_refused_with_those_that_do(tmp_path):
    folder = write(tmp_path, llama("128x128", 320), BLOCK, intermediate_size=320)
    with pytest.raises(ConfigError) as caught:
        one_of(3, folder)
    assert caught.value.what == "LlamaForCausalLM cannot be divided among 3 ranks."
    assert caught.value.tp_sizes == (1, 2, 4)
    assert "model.layers.*.self_attn.q_proj: 4 heads cannot be divided among 3 ranks" in (
        caught.value.why
    )


def test_a_model_without_a_plan_is_refused(tmp_path):
    config = transformers.GPT2Config(vocab_size=64, n_embd=32, n_layer=1, n_head=2)
    transformers.GPT2LMHeadModel(config).save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match="no tensor-parallel plan") as caught:
        one_of(2, tmp_path, "none")
    assert caught.value.tp_sizes == (1,)


@pytest.mark.parametrize(
    ("entry", "style", "text"),
    [
        ("layers.*.mlp", "all_reduce", "divides model.layers.* as 'all_reduce', which is not"),
        ("layers.*.mlp", "colwise", "divides model.layers.*.mlp, which is no linear layer"),
    ],
)
def test_an_entry_that_is_not_understood_is_refused(tmp_path, monkeypatch, entry, style, text):
    folder = write(tmp_path, llama())
    plan = {**transformers.LlamaConfig.base_model_tp_plan, entry: style}
    monkeypatch.setattr(transformers.LlamaConfig, "base_model_tp_plan", plan)
    with pytest.raises(ConfigError, match="cannot be divided among ranks") as caught:
        one_of(2, folder, "none")
    assert text.replace("layers.* ", "layers.*.mlp ") in str(caught.value)


def test_a_tensor_of_another_size_is_refused_on_every_rank(tmp_path):
    tensors = llama() | {f"{HEAD}.weight": torch.ones(400, 256, dtype=torch.bfloat16)}
    folder = write(tmp_path, tensors)
    with pytest.raises(LoadError, match=r"lm_head.weight has shape \[400, 256\]") as caught:
        one_of(2, folder, "fp8_per_channel", rank=0)
    assert caught.value.why == ("the model is built for [320, 256]",)


def test_a_part_is_not_saved(tmp_path):
    for method in ("none", "fp8_per_channel"):
        model = one_of(2, write(tmp_path, llama()), method)
        with pytest.raises(SaveError, match="divided among 2 ranks cannot be saved"):
            model.save_pretrained(tmp_path / "out")


def test_a_rank_is_reloaded_in_place(tmp_path):
    folder = write(tmp_path / "first", llama("128x128", 320), BLOCK, intermediate_size=320)
    other = llama("128x128", 320)
    other[f"{EMBEDDING}.weight"] = other[f"{EMBEDDING}.weight"].flip(0).contiguous()
    other[f"{DOWN}.weight_scale_inv"] = 2 * other[f"{DOWN}.weight_scale_inv"]
    second = write(tmp_path / "second", other, BLOCK, intermediate_size=320)
    model, expected = one_of(4, folder), one_of(4, second)
    places = {name: p.data_ptr() for name, p in model.named_parameters()}
    quantdock.reload(model, second)
    for name, parameter in model.named_parameters():
        assert parameter.data_ptr() == places[name]
        found, wanted = (
            t.detach().view(torch.uint8) for t in (parameter, expected.get_parameter(name))
        )
        assert torch.equal(found, wanted), name


def test_each_rank_has_the_cache_scales_of_its_heads(tmp_path):
    scales = {f"{K.rpartition('.')[0]}.{half}_scale": torch.tensor([0.5, 0.25]) for half in "kv"}
    folder = write(tmp_path, llama("*x*") | scales, TENSOR)
    for size, rank, expected in ((2, 0, 0.5), (2, 1, 0.25), (4, 1, 0.5), (4, 2, 0.25)):
        model = one_of(size, folder, rank=rank)
        found = model.model.layers[0].self_attn.kv_scales
        assert (found.k.value, found.v.value) == (expected, expected)
