"""Layers as the headers show them."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import save_file

from quantdock.checkpoint import open_checkpoint, read_header
from quantdock.plan.stored_layers import stored_model
from quantdock.schemes import StoredTensor
from tests.sparse_files import (
    LLAMA_CONFIG,
    block_fp8,
    llama,
    plain,
    write_checkpoint,
    write_tensors,
)


def model_of(tmp_path, tensors):
    return stored_model(read_header(write_tensors(tmp_path / "x.safetensors", tensors)))


def kinds(model):
    return {layer.facts.prefix: layer.facts.kind for layer in model.layers}


def test_a_llama(tmp_path):
    model = model_of(tmp_path, llama(layers=1))
    assert len(model.layers) == 9
    assert kinds(model)["model.embed_tokens"] == "embedding"
    assert kinds(model)["lm_head"] == "head"
    assert kinds(model)["model.layers.0.mlp.up_proj"] == "linear"
    assert model.bytes_other == 2 * 256  # the norm


def test_what_a_layer_stores(tmp_path):
    (layer,) = model_of(tmp_path, block_fp8("a.up_proj", 300, 200)).layers
    assert layer.facts.stored == {
        "weight": StoredTensor(dtype="float8_e4m3fn", shape=(300, 200)),
        "weight_scale_inv": StoredTensor(dtype="float32", shape=(3, 2)),
    }
    layout = layer.layout
    assert (layout.n, layout.k, layout.copies) == (300, 200, 1)
    assert layout.num_bytes == 300 * 200 + 4 * 6 and layout.codes == ("weight", "weight_scale_inv")


def test_layers_of_one_shape_share_one_layout(tmp_path):
    model = model_of(tmp_path, block_fp8("a.0.up", 128, 128) | block_fp8("a.1.up", 128, 128))
    first, second = model.layers
    assert first.layout is second.layout and first.facts.stored is second.facts.stored


@pytest.mark.parametrize(
    ("name", "shape", "kind"),
    [
        ("transformer.wte", (8, 4), "embedding"),
        ("model.language_model.embed_tokens", (8, 4), "embedding"),
        ("model.visual.pos_embed", (8, 4), "embedding"),
        ("language_model.lm_head", (8, 4), "head"),
        ("output", (8, 4), "head"),
        ("bert.encoder.layer.0.attention.output", (8, 4), "linear"),
        ("model.layers.61.shared_head.head", (8, 4), "head"),
        ("model.layers.0.mlp.experts.3.w1", (8, 4), "experts"),
        ("model.layers.0.mlp.shared_expert.up_proj", (8, 4), "linear"),
        ("model.layers.0.mlp.gate", (8, 4), "linear"),
        ("mtp.fc", (8, 4), "linear"),
        ("model.norm", (8,), None),
        ("model.visual.patch_embed.proj", (8, 3, 2, 2), None),
        ("backbone.mixer.conv1d", (8, 1, 4), None),
    ],
)
def test_kinds(tmp_path, name, shape, kind):
    assert kinds(model_of(tmp_path, plain(name, *shape))).get(name) == kind


def test_fused_experts_become_a_layer_for_each_weight(tmp_path):
    experts = "model.layers.0.mlp.experts"
    model = model_of(
        tmp_path,
        {
            f"{experts}.gate_up_proj": ("BF16", (4, 8, 6)),
            f"{experts}.gate_up_proj_bias": ("BF16", (4, 8)),
            f"{experts}.down_proj_blocks": ("U8", (4, 6, 1, 16)),
            f"{experts}.down_proj_scales": ("U8", (4, 6, 1)),
        },
    )
    gate_up, down = model.layers
    assert gate_up.facts.prefix == f"{experts}.gate_up_proj"
    assert set(gate_up.facts.stored) == {"weight", "bias"}
    assert (gate_up.layout.n, gate_up.layout.k, gate_up.layout.copies) == (8, 6, 4)
    assert set(down.facts.stored) == {"weight_blocks", "weight_scales"}
    assert down.layout.codes == ("weight_blocks", "weight_scales") and down.layout.n is None


def test_stacked_experts_are_asked_about_one_by_one(tmp_path):
    """As loading does: gate and up apart where rows allow, [K, N] turned, in either name."""
    experts = "model.layers.{}.mlp.experts"
    tensors = {
        f"{experts.format(0)}.gate_up_proj": ("BF16", (4, 8, 6)),
        f"{experts.format(0)}.down_proj": ("BF16", (4, 6, 4)),
        f"{experts.format(1)}.gate_up_proj": ("BF16", (4, 6, 8)),
        f"{experts.format(1)}.gate_up_proj_bias": ("BF16", (4, 8)),
        f"{experts.format(1)}.down_proj": ("BF16", (4, 4, 6)),
        f"{experts.format(2)}.w13.weight": ("F8_E4M3", (4, 8, 6)),
        f"{experts.format(2)}.w13.weight_scale": ("F32", (4, 3, 1)),
    }
    layers = {x.facts.prefix[13:]: x for x in model_of(tmp_path, tensors).layers}
    shapes = {
        name: {part: tensor.shape for part, tensor in layer.asked.stored.items()}
        for name, layer in layers.items()
    }
    assert shapes == {
        "0.mlp.experts.gate_up_proj": {"weight": (4, 6)},
        "0.mlp.experts.down_proj": {"weight": (6, 4)},
        "1.mlp.experts.gate_up_proj": {"weight": (8, 6), "bias": (8,)},
        "1.mlp.experts.down_proj": {"weight": (6, 4)},
        "2.mlp.experts.w13": {"weight": (8, 6), "weight_scale": (3, 1)},
    }
    assert [layer.layout.stack.number for layer in layers.values()] == [4] * 5
    assert layers["2.mlp.experts.w13"].layout.stack.told("weight_scale") == ("weight_scale",)


def test_parts_below_a_weight_belong_to_its_layer(tmp_path):
    tensors = {
        "up_proj.weight": ("U8", (64, 1)),
        "up_proj.weight.absmax": ("F32", (2,)),
        "up_proj.weight.quant_state.bitsandbytes__nf4": ("U8", (9,)),
    }
    (layer,) = model_of(tmp_path, tensors).layers
    assert list(layer.facts.stored) == [
        "weight",
        "weight.absmax",
        "weight.quant_state.bitsandbytes__nf4",
    ]


@pytest.mark.parametrize(
    "name", ["self_attn.k_scale", "self_attn.kv_scale", "attn.qkv_proj.v_scale"]
)
def test_scales_of_the_cache_make_no_layer(tmp_path, name):
    model = model_of(tmp_path, {f"model.layers.0.{name}": ("F32", ())})
    assert (model.layers, model.bytes_other) == ((), 4)


def test_order_and_shards_make_no_difference(tmp_path):
    one = open_checkpoint(write_checkpoint(tmp_path / "a", LLAMA_CONFIG, llama()))
    backwards = dict(reversed(llama().items()))
    five = open_checkpoint(write_checkpoint(tmp_path / "b", LLAMA_CONFIG, backwards, shards=5))
    left = {layer.facts.prefix: layer.facts.stored for layer in stored_model(one.tensors).layers}
    right = {layer.facts.prefix: layer.facts.stored for layer in stored_model(five.tensors).layers}
    assert left == right


def test_a_stated_shape_is_read_where_words_show_k_to_the_next_word_only(tmp_path):
    file = tmp_path / "x.safetensors"
    packed, shape = torch.zeros(8, 2, dtype=torch.int32), torch.tensor([8, 11])
    tensors = {
        "a.up": {"weight_packed": packed, "weight_shape": shape, "weight_scale": torch.ones(8, 1)},
        "b.up": {"weight_packed": packed, "weight_shape": shape, "weight_scale": torch.ones(8, 2)},
        "c.up": {
            "weight_packed": packed,
            "weight_shape": shape + 1,
            "weight_scale": torch.ones(8, 1),
        },
    }
    save_file({f"{n}.{p}": t.clone() for n, ps in tensors.items() for p, t in ps.items()}, file)
    values = {
        layer.facts.prefix: layer.facts.stored["weight_shape"].values
        for layer in stored_model(read_header(file)).layers
    }
    assert values == {"a.up": (8, 11), "b.up": (8, 11), "c.up": (9, 12)}
