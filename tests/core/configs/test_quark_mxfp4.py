"""quark_mxfp4: Quark's files with MXFP4 in them, and 16-bit weights at load."""

from __future__ import annotations

import pytest
import torch

from quantdock import dispatch_for
from quantdock.configs.quark_mxfp4 import QuarkMxfp4Config
from quantdock.errors import ConfigError
from quantdock.numerics import quantize
from quantdock.schemes import LayerFacts, StoredTensor

GROUP = {"dtype": "fp4", "qscheme": "per_group", "group_size": 32, "scale_format": "e8m0"}
FP8 = {"dtype": "fp8_e4m3", "qscheme": "per_tensor", "is_dynamic": False}
UP = LayerFacts(prefix="model.layers.0.mlp.up_proj")
MXFP4 = "fp4_e2m1[1x32]:e8m0:even"


def test_a_file_with_mxfp4_is_read_as_quarks() -> None:
    block = {
        "global_quant_config": {"weight": FP8},
        "layer_quant_config": {"*.up_proj": {"weight": GROUP}},
        "exclude": ["lm_head"],
    }
    config = QuarkMxfp4Config.from_config(block)
    down = LayerFacts(prefix="model.layers.0.mlp.down_proj")
    assert str(config.scheme_for(UP).scheme) == MXFP4
    assert str(config.scheme_for(down).scheme) == "fp8_e4m3[*x*]"
    shapes = {s.name: s.shape for s in config.slots(config.scheme_for(UP).scheme, 8, 64, UP)}
    assert shapes == {"weight": (8, 32), "weight_scale": (8, 2)}
    assert config.unmatched() == ("exclude[0] = 'lm_head'",)


def test_a_file_without_it_is_refused() -> None:
    with pytest.raises(ConfigError, match="quark_mxfp4 was asked for") as caught:
        QuarkMxfp4Config.from_config({"global_quant_config": {"weight": FP8}})
    assert "ask for 'quark'" in caught.value.todo


def test_16_bit_weights_are_quantized_at_load() -> None:
    config = QuarkMxfp4Config.online(ignore=["*.0.mlp.gate_proj"]).bind(dispatch_for("cpu"))
    stored = {"weight": StoredTensor(dtype="bfloat16", shape=(48, 64))}
    facts = LayerFacts(prefix=UP.prefix, stored=stored)
    scheme = config.scheme_for(facts).scheme
    assert str(scheme) == f"{MXFP4} x {MXFP4}:dynamic"
    weight = torch.randn(48, 64, generator=torch.Generator().manual_seed(1))
    made = config.decode(scheme, [{"weight": weight}], facts)
    assert torch.equal(made.segments[0].codes, quantize(weight, scheme.weight).codes)
    assert config.scheme_for(LayerFacts(prefix="a.0.mlp.gate_proj")).kind == "unquantized"
