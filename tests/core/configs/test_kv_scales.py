"""Names of KV scales: S04, and the tensors that must not be mistaken for one."""

from __future__ import annotations

import pytest

from quantdock.configs.kv_scales import is_kv_scale

ATTENTION = "model.layers.0.self_attn"


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
        f"{ATTENTION}.q_proj.output_scale",
        f"{ATTENTION}.k_proj.weight",
        "model.layers.0.mlp.up_proj.output_scale",
        "layers.0.attention.wq.qscale_act",
        "model.layers.0.mlp.mask_scale",
    ],
)
def test_scales_of_weights_and_inputs_are_none(name: str) -> None:
    assert not is_kv_scale(name)
