"""A block of the language model does not reach other towers."""

from __future__ import annotations

import pytest

from quantdock.checkpoint.scope import covers


@pytest.mark.parametrize(
    "prefix",
    [
        "vision_tower.blocks.0.fc",
        "model.visual.blocks.0.attn.qkv",
        "vpm.layers.0.mlp.fc1",
        "model.vision_tower.encoder.layers.0.mlp.fc1",
        "multi_modal_projector.linear_1",
        "thinker.audio_tower.layers.0.fc1",
    ],
)
def test_towers_are_outside(prefix):
    assert not covers("text_config", prefix)
    assert covers("", prefix)


@pytest.mark.parametrize(
    "prefix",
    ["language_model.model.layers.0.mlp.down_proj", "model.layers.0.mlp.visual_gate", "lm_head"],
)
def test_the_language_model_is_inside(prefix):
    assert covers("text_config", prefix)
