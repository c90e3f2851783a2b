"""w8a8_int8: checkpoints, and 16-bit models at load."""

from __future__ import annotations

import pytest
import torch

from quantdock.configs.w8a8_int8 import W8A8Int8Config
from quantdock.errors import ConfigError
from quantdock.schemes import LayerFacts, StoredTensor

UP = "model.layers.0.mlp.up_proj"
SCHEME = "int8[1x*] x int8[1x*]:dynamic"
STORED = {
    "weight": StoredTensor(dtype="int8", shape=(96, 64)),
    "weight_scale": StoredTensor(dtype="float32", shape=(96, 1)),
}


def test_a_scale_a_row_and_a_token() -> None:
    config = W8A8Int8Config.from_config({"quant_method": "w8a8_int8", "ignore": ["o_proj"]})
    assert str(config.scheme_for(LayerFacts(prefix=UP)).scheme) == SCHEME
    ignored = config.scheme_for(LayerFacts(prefix="model.layers.0.self_attn.o_proj"))
    assert ignored.source == "ignore[0] = 'o_proj'"


def test_codes_and_scales_are_taken_as_they_are() -> None:
    config = W8A8Int8Config.from_config({})
    facts = LayerFacts(prefix=UP, stored=STORED)
    scheme = config.scheme_for(facts).scheme
    assert scheme is not None and config.weight_shape(scheme, facts) == (96, 64)
    weight, scale = config.slots(scheme, 96, 64, facts)
    assert (weight.name, weight.dtypes, scale.name) == ("weight", ("int8",), "weight_scale")
    codes = torch.randint(-128, 128, (96, 64), dtype=torch.int8)
    scales = torch.rand(96, 1) - 0.5
    made = config.decode(scheme, [{"weight": codes, "weight_scale": scales}], facts)
    assert torch.equal(made.dequantize(), codes * scales)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"weight": StoredTensor(dtype="float8_e4m3fn", shape=(96, 64))}, "float8_e4m3fn, not"),
        ({"weight_scale": StoredTensor(dtype="float32", shape=(1,))}, r"is \[1\], not \[96, 1\]"),
    ],
)
def test_what_is_no_int8_by_rows_is_refused(change: dict[str, StoredTensor], message: str) -> None:
    decision = W8A8Int8Config.from_config({}).scheme_for(
        LayerFacts(prefix=UP, stored=STORED | change)
    )
    assert decision.error
    assert f"{UP}.weight" in decision.because
    assert message.replace("\\", "") in decision.because


def test_a_bfloat16_weight_is_a_plain_layer() -> None:
    stored = {"weight": StoredTensor(dtype="bfloat16", shape=(96, 64))}
    decision = W8A8Int8Config.from_config({}).scheme_for(LayerFacts(prefix=UP, stored=stored))
    assert (decision.kind, decision.because) == ("unquantized", "the file stores it as bfloat16")


def test_static_activations_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"w8a8_int8: activation_scheme is 'static'"):
        W8A8Int8Config.from_config({"activation_scheme": "static"})


def test_a_16_bit_checkpoint_is_quantized_at_load() -> None:
    config = W8A8Int8Config.online(ignore=["o_proj"])
    facts = LayerFacts(prefix=UP, stored={"weight": StoredTensor(dtype="bfloat16", shape=(2, 2))})
    decision = config.scheme_for(facts)
    assert str(decision.scheme) == SCHEME and decision.scheme is not None
    assert config.scheme_for(LayerFacts(prefix="a.o_proj")).kind == "unquantized"
    assert config.scheme_for(LayerFacts(prefix="lm_head", kind="head")).kind == "unquantized"
    assert [slot.name for slot in config.slots(decision.scheme, 2, 2, facts)] == ["weight"]
    weight = torch.tensor([[12.7, -6.35], [0.0, 0.0]])
    made = config.decode(decision.scheme, [{"weight": weight}], facts)
    assert made.segments[0].codes.tolist() == [[127, -64], [0, 0]]
    refused = config.scheme_for(LayerFacts(prefix=UP, stored=STORED))
    assert refused.error and "stored as int8" in refused.because
    assert config.unmatched() == ()
