"""Layers by the model's classes: kinds, names of the file, models that nobody knows."""

from __future__ import annotations

from quantdock.checkpoint import open_checkpoint
from quantdock.integrations.transformers.model_layers import model_layers
from toy_files import edit_config


def test_kinds_are_those_of_the_classes(make_toy):
    layers = {f.prefix: f for f in model_layers(open_checkpoint(make_toy()))}
    assert layers["model.embed_tokens"].kind == "embedding"
    assert layers["lm_head"].kind == "head"
    up = layers["model.layers.1.mlp.up_proj"]
    assert (up.kind, up.stored["weight"].shape) == ("linear", (512, 256))
    assert len(layers) == 2 * 7 + 2


def test_a_tied_head_is_a_layer_that_stores_nothing(make_toy):
    folder = make_toy(tie_word_embeddings=True)
    (head,) = [f for f in model_layers(open_checkpoint(folder)) if f.kind == "head"]
    assert (head.prefix, head.stored) == ("lm_head", {})


def test_an_unknown_model_has_none(make_toy):
    folder = make_toy()
    edit_config(folder, model_type="novel")
    assert model_layers(open_checkpoint(folder)) is None
