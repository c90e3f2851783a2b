"""w8a8_fp8."""

from __future__ import annotations

import pytest

from quantdock.configs.w8a8_fp8 import W8A8Fp8Config
from quantdock.errors import ConfigError
from quantdock.schemes import LayerFacts, StoredTensor


def test_a_scale_a_row_and_a_token() -> None:
    config = W8A8Fp8Config.from_config({"quant_method": "w8a8_fp8", "ignored_layers": ["o_proj"]})
    decision = config.scheme_for(LayerFacts(prefix="model.layers.0.mlp.up_proj"))
    assert str(decision.scheme) == "fp8_e4m3[1x*] x fp8_e4m3[1x*]:dynamic"
    ignored = config.scheme_for(LayerFacts(prefix="model.layers.0.self_attn.o_proj"))
    assert ignored.source == "ignored_layers[0] = 'o_proj'"


def test_slots_are_weight_and_weight_scale() -> None:
    config = W8A8Fp8Config.from_config({})
    stored = {
        "weight": StoredTensor(dtype="float8_e4m3fn", shape=(96, 64)),
        "weight_scale": StoredTensor(dtype="float32", shape=(96, 1)),
    }
    facts = LayerFacts(prefix="a", stored=stored)
    scheme = config.scheme_for(facts).scheme
    assert scheme is not None
    weight, scale = config.slots(scheme, 96, 64, facts)
    assert (weight.shape, scale.name) == ((96, 64), "weight_scale")
    assert scale.shapes == ((96, 1), (96, 1, 1, 1), (96,))


def test_static_activations_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"w8a8_fp8: activation_scheme is 'static'"):
        W8A8Fp8Config.from_config({"activation_scheme": "static"})


def test_16_bit_checkpoints_are_refused() -> None:
    with pytest.raises(ConfigError, match="w8a8_fp8 cannot quantize a 16-bit checkpoint at load"):
        W8A8Fp8Config.online()
