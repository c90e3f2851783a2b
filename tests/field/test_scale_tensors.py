"""Scales of the field: S03, S04, S05, S17, S18 - every name and shape, and what is missing."""

from __future__ import annotations

import pytest
import torch

import quantdock
from quantdock.errors import LoadError, QuantDockError
from toy_llama import (
    BLOCK,
    DOWN,
    K,
    LAYER,
    O,
    Q,
    STATIC,
    TENSOR,
    V,
    codes,
    dense,
    llama,
    load,
    make_layer,
    plans,
    run,
    with_input_scales,
    write,
)

HALF = torch.tensor(0.5, dtype=torch.bfloat16)
QUARTER = torch.tensor(0.25, dtype=torch.bfloat16)


@pytest.mark.parametrize(
    ("block", "tile", "scales"),
    [
        (BLOCK, "128x128", {"weight_scale_inv": torch.full((2, 2), 0.5)}),
        (STATIC, "*x*", {"weight_scale_inv": HALF, "activation_scale": QUARTER}),
        (STATIC, "*x*", {"weight_scale": HALF, "input_scale": QUARTER}),
    ],
    ids=["block", "static inv", "static"],
)
def test_s03_every_name_of_a_scale_multiplies(tmp_path, block, tile, scales):
    tensors = llama(tile) if block is BLOCK else with_input_scales(llama(tile))
    for name in [name for name in tensors if name.startswith(Q)]:
        del tensors[name]
    tensors[f"{Q}.weight"] = codes(256, 256)
    tensors |= {f"{Q}.{name}": scale for name, scale in scales.items()}
    folder = write(
        tmp_path, tensors, {**block, "weight_block_size": block.get("weight_block_size")}
    )
    assert torch.equal(dense(folder, Q), torch.full((256, 256), 0.5))
    model = load(folder)
    assert torch.equal(run(model, Q, torch.ones(2, 256)), torch.full((2, 256), 128.0))
    if block is STATIC:
        assert model.get_submodule(Q).input_scale.tolist() == [0.25]
    assert not [w for w in model.quantdock_plan.warnings if "plain torch" not in w]
    assert model.quantdock_plan.unused == ()


@pytest.mark.parametrize(
    "scales",
    [
        {"k_proj.k_scale": 0.02, "v_proj.v_scale": 0.04},
        {"qkv_proj.k_scale": 0.02, "qkv_proj.v_scale": 0.04},
        {"k_scale": 0.02, "v_scale": 0.04},
        {"kv_scale": 0.03},
        {"k_proj.output_scale": 0.02, "v_proj.output_scale": 0.04},
        {"v_scale": 0.04},
        {},
    ],
)
def test_s04_scales_of_the_cache_never_pass_for_a_layers_own(tmp_path, scales):
    """The cache stays in the model's dtype, which needs no scale, and the plan says so."""
    stored = {f"{LAYER}.self_attn.{name}": torch.tensor(v) for name, v in scales.items()}
    block = {**BLOCK, "kv_cache_scheme": {"type": "float", "num_bits": 8}}
    model = load(write(tmp_path / "kv", llama("128x128") | stored, block))
    plan = model.quantdock_plan
    assert "the file asks for a KV cache in float8; it stays in the model's dtype" in plan.notes
    assert sorted(plan.unused) == sorted(stored)
    without = load(write(tmp_path / "plain", llama("128x128"), BLOCK))
    x = torch.ones(1, 256)
    for name in (Q, K, V):
        assert torch.equal(run(model, name, x), run(without, name, x))
    explained = quantdock.explain(tmp_path / "kv", platform="cpu")
    assert not [w for w in explained.warnings if "would stop" in w]


def test_s04_scales_of_the_cache_that_no_config_speaks_of_are_told(tmp_path):
    stored = {f"{K}.k_scale": torch.tensor(0.02), f"{V}.v_scale": torch.tensor(0.04)}
    model = load(write(tmp_path, llama("128x128") | stored, BLOCK))
    assert sorted(model.quantdock_plan.unused) == sorted(stored)
    assert any("KV cache" in note for note in model.quantdock_plan.notes)


def test_s05_a_missing_scale_is_an_error_before_anything_runs(tmp_path):
    tensors = llama("128x128")
    del tensors[f"{Q}.weight_scale_inv"]
    folder = write(tmp_path, tensors, BLOCK)
    with pytest.raises(QuantDockError, match=rf"{Q}\.weight is stored as float8_e4m3fn and its"):
        load(folder)
    with pytest.raises(QuantDockError, match=rf"{Q}\.weight is stored as"):
        load(folder, "none")
    layer = {layer.prefix: layer for layer in quantdock.explain(folder).layers}[Q]
    assert layer.decision == "error" and "weight_scale_inv" in layer.because


def test_s05_a_fused_layer_names_the_part_that_is_missing():
    gate = {"weight": codes(64, 128), "weight_scale": torch.tensor(1.0)}
    with pytest.raises(LoadError, match=r"missing .*\.weight_scale of shard 1"):
        make_layer(TENSOR, 128, [gate, {"weight": codes(64, 128)}])


@pytest.mark.parametrize("quantization", [None, "fp8"])
def test_s05_quantization_tensors_without_a_block_are_an_error(tmp_path, quantization):
    packed = {
        "x.weight": torch.zeros(8, 4, dtype=torch.uint8),
        "x.weight_scale": torch.zeros(8, 1).to(torch.float8_e4m3fn),
        "x.weight_scale_2": torch.tensor(1.0),
    }
    folder = write(tmp_path, llama() | packed)
    for call in (load, quantdock.explain):
        with pytest.raises(LoadError, match="nothing says how it is quantized") as caught:
            call(folder, quantization=quantization)
        assert "x.weight_scale_2" in str(caught.value)


def test_s05_scales_that_nothing_takes_are_an_error(tmp_path):
    extra = {f"{DOWN}.weight_scale_2": torch.tensor(1.0)}
    with pytest.raises(LoadError, match=rf"{DOWN}\.weight_scale_2 \(layer {DOWN}\)"):
        load(write(tmp_path, llama("128x128") | extra, BLOCK))


def test_s05_an_optional_input_scale_may_be_missing(tmp_path):
    assert plans(load(write(tmp_path, llama("*x*"), TENSOR)))[Q].decision == "quantized"


CHANNEL = 0.01 * torch.arange(1, 129)
PAIR = torch.tensor([1.0, 2.0])


@pytest.mark.parametrize(
    ("block", "tile", "name", "scale", "expected"),
    [
        (TENSOR, "*x*", "weight_scale", torch.tensor(0.25), 0.25),
        (TENSOR, "*x*", "weight_scale", torch.tensor([0.25]), 0.25),
        (TENSOR, "1x*", "weight_scale", CHANNEL, CHANNEL[:, None]),
        (TENSOR, "1x*", "weight_scale", CHANNEL[:, None], CHANNEL[:, None]),
        ({"quant_method": "fbgemm_fp8"}, "1x*", "weight_scale", CHANNEL, CHANNEL[:, None]),
        ({"quant_method": "fbgemm_fp8"}, "1x*", "weight_scale", CHANNEL[:, None], CHANNEL[:, None]),
        ({"quant_method": "w8a8_fp8"}, "1x*", "weight_scale", CHANNEL[:, None], CHANNEL[:, None]),
        (BLOCK, "128x128", "weight_scale", PAIR[None], PAIR.repeat_interleave(128)),
        (BLOCK, "128x128", "weight_scale", PAIR.view(1, 1, 2, 1), PAIR.repeat_interleave(128)),
        (BLOCK, "128x128", "weight_scale_inv", PAIR[None], PAIR.repeat_interleave(128)),
    ],
)
def test_s17_scales_of_equal_count_are_equal_whatever_their_rank(
    tmp_path, block, tile, name, scale, expected
):
    tensors = llama(tile)
    tensors.pop(f"{K}.weight_scale_inv", None)
    tensors |= {f"{K}.weight": codes(128, 256), f"{K}.{name}": scale.contiguous()}
    folder = write(tmp_path, tensors, block)
    expected = torch.as_tensor(expected).expand(128, 256)
    assert torch.equal(dense(folder, K), expected)
    result = run(load(folder), K, torch.ones(1, 256))[0]
    assert torch.allclose(result, expected.sum(1), rtol=1e-6)


def test_s17_an_impossible_count_is_refused_with_both_numbers(tmp_path):
    tensors = llama("1x*") | {f"{K}.weight_scale": CHANNEL[:127].clone()}
    with pytest.raises(QuantDockError, match=rf"{K}\.weight_scale has 127 elements.* 128 \("):
        load(write(tmp_path, tensors, TENSOR))


def test_s18_fused_parts_keep_their_own_scales():
    parts = [
        {"weight": codes(n, 256, 16.0), "weight_scale": torch.tensor(scale)}
        for n, scale in ((256, 0.5), (128, 0.25), (128, 1.0))
    ]
    row = make_layer(TENSOR, 256, parts)(torch.ones(1, 256))[0]
    assert row[:256].unique().tolist() == [2048.0]
    assert row[256:384].unique().tolist() == [1024.0]
    assert row[384:].unique().tolist() == [4096.0]


def test_s18_equal_scales_leave_the_bytes_untouched(tmp_path):
    parts = [{"weight": codes(n, 256, 16.0), "weight_scale": HALF} for n in (256, 128, 128)]
    layer = make_layer(TENSOR, 256, parts)
    assert torch.equal(layer.weight.view(torch.uint8), codes(512, 256, 16.0).view(torch.uint8))
    assert layer.quant_method.value_steps == ()
    tensors = llama("*x*")
    model = load(write(tmp_path, tensors, TENSOR))
    for name in (Q, K, V, O):
        found = model.get_submodule(name).weight
        assert torch.equal(found.view(torch.uint8), tensors[f"{name}.weight"].view(torch.uint8))
