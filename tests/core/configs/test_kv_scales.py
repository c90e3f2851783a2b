"""Names of KV scales: S04, and the tensors that must not be mistaken for one."""

from __future__ import annotations

import pytest

from quantdock.configs.kv_scales import (
    KVScaleNames,
    assign_kv_scales,
    has_kv_scales,
    is_kv_scale,
    is_largest_value,
)

ATTENTION = "model.layers.0.self_attn"
OUTPUTS = ("k_proj.output_scale", "v_proj.output_scale")


@pytest.mark.parametrize(
    "name",
    [
        f"{ATTENTION}.k_proj.k_scale",
        f"{ATTENTION}.v_proj.v_scale",
        f"{ATTENTION}.qkv_proj.k_scale",
        f"{ATTENTION}.kv_scale",
        f"{ATTENTION}.k_scale",
        f"{ATTENTION}.attn.v_scale",
        f"{ATTENTION}.k_proj.output_scale",
        f"{ATTENTION}.v_proj.output_scale",
        f"{ATTENTION}.kv_cache_scale",
        f"{ATTENTION}.k_zero_point",
        f"{ATTENTION}.q_scale",
        f"{ATTENTION}.q_proj.output_scale",  # Quark's, where attention itself is in fp8
        f"{ATTENTION}.prob_output_scale",
        "layers.0.attention.k_fake_quantizer.qscale_act",
        "k_scale",
    ],
)
def test_every_spelling_is_known(name: str) -> None:
    assert is_kv_scale(name)


@pytest.mark.parametrize(
    "name",
    [
        f"{ATTENTION}.k_proj.weight_scale",
        f"{ATTENTION}.k_proj.input_scale",
        f"{ATTENTION}.k_proj.weight",
        "model.layers.0.mlp.up_proj.output_scale",
        "layers.0.attention.wq.qscale_act",
        "model.layers.0.mlp.mask_scale",
    ],
)
def test_scales_of_weights_and_inputs_are_none(name: str) -> None:
    assert not is_kv_scale(name)


@pytest.mark.parametrize(
    ("parts", "keys", "values"),
    [
        (("k_proj.k_scale", "v_proj.v_scale"), ("k_proj.k_scale",), ("v_proj.v_scale",)),
        (("qkv_proj.k_scale", "qkv_proj.v_scale"), ("qkv_proj.k_scale",), ("qkv_proj.v_scale",)),
        (("k_scale", "v_scale"), ("k_scale",), ("v_scale",)),
        (("attn.k_scale", "attn.v_scale"), ("attn.k_scale",), ("attn.v_scale",)),
        (("kv_scale",), ("kv_scale",), ("kv_scale",)),
        (("kv_cache_scale",), ("kv_cache_scale",), ("kv_cache_scale",)),
        (("k_cache_scale", "v_cache_scale"), ("k_cache_scale",), ("v_cache_scale",)),
        (OUTPUTS, OUTPUTS[:1], OUTPUTS[1:]),
        (("qkv_proj.output_scale",),) * 3,
        (("kv_scale", "v_scale"), ("kv_scale",), ("v_scale",)),
        (("k_fake_quantizer.qscale_act",), ("k_fake_quantizer.qscale_act",), ()),
        (("v_bmm_quantizer._amax",), (), ("v_bmm_quantizer._amax",)),
        (("k_scale_inv",), ("k_scale_inv",), ()),
        (("q_scale", "p_scale", "k_global_scale", "k_proj.weight_scale"), (), ()),
    ],
)
def test_s04_each_scale_goes_to_keys_values_or_both(parts, keys, values) -> None:
    names = [f"{ATTENTION}.{part}" for part in parts]
    found = assign_kv_scales(names, [ATTENTION])[ATTENTION]
    assert found.of_keys == tuple(f"{ATTENTION}.{part}" for part in keys)
    assert found.of_values == tuple(f"{ATTENTION}.{part}" for part in values)
    assert has_kv_scales(names) is bool(keys or values)


def test_scales_go_to_the_layer_with_the_longest_prefix() -> None:
    names = ["h.1.attn.k_scale", "h.1.attn.attn.v_scale", "h.10.attn.k_scale", "h.1.mlp.k_scale"]
    found = assign_kv_scales(names, ["h.1.attn", "h.1.attn.attn"])
    assert found["h.1.attn"] == KVScaleNames(of_keys=("h.1.attn.k_scale",))
    assert found["h.1.attn.attn"].of_values == ("h.1.attn.attn.v_scale",)


def test_zero_points_are_kept_apart() -> None:
    names = [f"{ATTENTION}.k_scale", f"{ATTENTION}.k_zero_point"]
    found = assign_kv_scales(names, [ATTENTION])[ATTENTION]
    assert (found.of_keys, found.zero_points) == ((names[0],), (names[1],))
    assert found.all == tuple(names)


def test_a_largest_value_is_no_scale() -> None:
    assert is_largest_value("h.0.attn.k_bmm_quantizer._amax")
    assert not is_largest_value("h.0.attn.k_bmm_quantizer._scale")
