"""mxfp8: a forced tile, exponent bytes."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from quantdock.configs.mxfp8 import Mxfp8Config
from quantdock.errors import ConfigError
from quantdock.schemes import LayerFacts, StoredTensor

SCHEME = "fp8_e4m3[1x32]:e8m0:ceil x fp8_e4m3[1x32]:e8m0:ceil:dynamic"


@pytest.mark.parametrize(
    "block", [{}, {"weight_block_size": [1, 32], "scale_fmt": "ue8m0"}, {"fmt": "float8_e4m3fn"}]
)
def test_tile_is_one_by_thirty_two(block: dict[str, Any]) -> None:
    config = Mxfp8Config.from_config({"quant_method": "mxfp8", **block})
    assert str(config.scheme_for(LayerFacts(prefix="model.layers.0.mlp.up_proj")).scheme) == SCHEME
    assert str(Mxfp8Config.online_schemes[0]) == SCHEME


@pytest.mark.parametrize(
    ("block", "text"),
    [
        (
            {"weight_block_size": [128, 128]},
            r"weight_block_size is \[128, 128\].\n  allowed: \[1, 32",
        ),
        ({"activation_scheme": "static"}, "activation_scheme is 'static'"),
        ({"scale_fmt": "float"}, "scale_fmt is 'float'"),
        ({"group_size": 16}, "group_size is 16"),
    ],
)
def test_other_values_are_refused_by_name(block: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=f"mxfp8: {text}"):
        Mxfp8Config.from_config(block)


@pytest.mark.parametrize("name", ["weight_scale", "weight_scale_inv"])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float8_e8m0fnu])
def test_scales_are_bytes(name: str, dtype: torch.dtype) -> None:
    config = Mxfp8Config.from_config({"ignored_layers": ["lm_head"]})
    stored = {
        "weight": StoredTensor(dtype="float8_e4m3fn", shape=(2, 40)),
        name: StoredTensor(dtype=str(dtype).removeprefix("torch."), shape=(2, 2)),
    }
    facts = LayerFacts(prefix="a.b", stored=stored)
    scheme = config.scheme_for(facts).scheme
    assert scheme is not None
    weight, scale = config.slots(scheme, 2, 40, facts)
    assert name in scale.spellings
    assert scale.dtypes == ("uint8", "float8_e8m0fnu")
    assert (scale.shape, scale.row_tile, scale.col_tile) == ((2, 2), 1, 32)
    tensors = {
        weight.name: torch.ones(2, 40).to(torch.float8_e4m3fn),
        scale.name: torch.tensor([[126, 127], [128, 130]], dtype=torch.uint8).view(dtype),
    }
    dense = config.decode(scheme, [tensors], facts).dequantize()
    assert dense[:, [0, 31, 32, 39]].tolist() == [[0.5, 0.5, 1.0, 1.0], [2.0, 2.0, 8.0, 8.0]]


def test_float_scales_are_another_format() -> None:
    stored = {
        "weight": StoredTensor(dtype="float8_e4m3fn", shape=(64, 64)),
        "weight_scale": StoredTensor(dtype="float32", shape=(1, 1)),
    }
    decision = Mxfp8Config.from_config({}).scheme_for(LayerFacts(prefix="a.b", stored=stored))
    assert decision.because == (
        "a.b.weight_scale has 1 elements, shape [1, 1]; expected 128 (one a 1 x 32 block)"
    )
