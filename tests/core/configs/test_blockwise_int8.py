"""blockwise_int8: scales by blocks, edge blocks too."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from quantdock.configs.blockwise_int8 import BlockwiseInt8Config
from quantdock.errors import ConfigError
from quantdock.schemes import LayerFacts, StoredTensor

UP = "model.layers.0.mlp.up_proj"
BLOCK = {"weight_block_size": [128, 128], "activation_scheme": "dynamic"}


def test_edge_blocks_have_a_scale() -> None:
    config = BlockwiseInt8Config.from_config({**BLOCK, "ignored_layers": ["o_proj"]})
    stored = {
        "weight": StoredTensor(dtype="int8", shape=(200, 300)),
        "weight_scale_inv": StoredTensor(dtype="float32", shape=(2, 3)),
    }
    facts = LayerFacts(prefix=UP, stored=stored)
    scheme = config.scheme_for(facts).scheme
    assert str(scheme) == "int8[128x128] x int8[1x128]:dynamic" and scheme is not None
    weight, scale = config.slots(scheme, 200, 300, facts)
    assert (weight.shape, scale.name, scale.shape) == ((200, 300), "weight_scale_inv", (2, 3))
    tensors = {
        "weight": torch.ones(200, 300, dtype=torch.int8),
        "weight_scale_inv": torch.arange(1.0, 7.0).view(2, 3),
    }
    values = config.decode(scheme, [tensors], facts).dequantize()
    assert values[[0, 199]][:, [0, 299]].tolist() == [[1.0, 3.0], [4.0, 6.0]]
    assert config.scheme_for(LayerFacts(prefix="a.o_proj")).kind == "unquantized"


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"weight_block_size": None}, "weight_block_size is None"),
        ({"weight_block_size": [128]}, r"weight_block_size is \[128\]"),
        ({"activation_scheme": "static"}, "activation_scheme is 'static'"),
    ],
)
def test_impossible_fields_are_named(fields: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=f"blockwise_int8: {text}"):
        BlockwiseInt8Config.from_config({**BLOCK, **fields})


def test_a_scale_of_another_block_size_is_refused() -> None:
    stored = {
        "weight": StoredTensor(dtype="int8", shape=(256, 256)),
        "weight_scale_inv": StoredTensor(dtype="float32", shape=(4, 4)),
    }
    config = BlockwiseInt8Config.from_config(BLOCK)
    decision = config.scheme_for(LayerFacts(prefix=UP, stored=stored))
    assert decision.error
    assert decision.because == f"{UP}.weight_scale_inv is [4, 4], not [2, 2], as int8[128x128] says"


def test_16_bit_checkpoints_are_refused() -> None:
    with pytest.raises(ConfigError, match="blockwise_int8 cannot quantize a 16-bit checkpoint"):
        BlockwiseInt8Config.online()
