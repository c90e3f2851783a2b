"""nvfp4_online: of 16-bit files all layers, of fp8 files the experts, and what that changes."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from quantdock import dispatch_for
from quantdock.configs.nvfp4_online import Nvfp4OnlineConfig
from quantdock.errors import ConfigError
from quantdock.numerics import quantize
from quantdock.schemes import LayerFacts
from third_party import headers

BLOCK = {"quant_method": "fp8", "weight_block_size": [128, 128]}
EXPERT = "model.layers.0.mlp.experts.0.up_proj"
NVFP4 = "fp4_e2m1[1x16]:e4m3:second[*x*]"
W4A4 = f"{NVFP4} x fp4_e2m1[1x16]:e4m3:dynamic:second[*x*]-dynamic"


def config(block: Any) -> Nvfp4OnlineConfig:
    return Nvfp4OnlineConfig.from_config(block).bind(dispatch_for("cpu"))


def stored() -> dict[str, torch.Tensor]:
    values = torch.randn(128, 256, generator=torch.Generator().manual_seed(4))
    return {
        "weight": values.to(torch.float8_e4m3fn),
        "weight_scale_inv": torch.tensor([[0.5, 2.0]]),
        "input_scale": torch.tensor(0.5),
    }


def test_experts_of_an_fp8_file_are_quantized_again() -> None:
    made, tensors = config(BLOCK), stored()
    facts = LayerFacts(prefix=EXPERT, kind="experts", stored=headers(tensors))
    decision = made.scheme_for(facts)
    assert str(decision.scheme) == W4A4
    assert "stored as fp8_e4m3[128x128]" in decision.because
    assert made.weight_shape(decision.scheme, facts) == (128, 256)
    slots = {slot.name: slot for slot in made.slots(decision.scheme, 128, 256, facts)}
    assert set(slots) == set(tensors) and slots["input_scale"].default == 1.0
    weight = made.decode(decision.scheme, [tensors], facts)
    scale = tensors["weight_scale_inv"].repeat_interleave(128, dim=1)
    real = tensors["weight"].float() * scale
    expected = quantize(real, decision.scheme.weight)
    assert torch.equal(weight.segments[0].codes, expected.codes)
    assert weight.value_steps == ("quantized again, from fp8_e4m3[128x128]",)
    assert weight.input_scale is None
    assert not any("it changes nothing" in note for note in made.notes())


def test_other_layers_stay_in_fp8() -> None:
    made, tensors = config(BLOCK), stored()
    facts = LayerFacts(prefix="model.layers.0.self_attn.q_proj", stored=headers(tensors))
    scheme = made.scheme_for(facts).scheme
    assert str(scheme) == "fp8_e4m3[128x128] x fp8_e4m3[1x128]:dynamic"
    assert made.decode(scheme, [tensors], facts).value_steps == ()
    assert made.notes()[-1] == (
        "no experts are stored in fp8, which nvfp4_online quantizes again: it changes nothing"
    )


def test_modelopts_fp8_too_and_nothing_else() -> None:
    made = config({"quant_method": "modelopt", "quant_algo": "FP8"})
    assert str(made.scheme_for(LayerFacts(prefix=EXPERT, kind="experts")).scheme) == W4A4
    with pytest.raises(ConfigError, match="nvfp4_online was asked for"):
        config({"quant_method": "modelopt", "quant_algo": "W8A16"})


def test_16_bit_files_are_quantized_whole() -> None:
    made = Nvfp4OnlineConfig.online().bind(dispatch_for("cpu"))
    tensors = {"weight": torch.randn(32, 64)}
    for kind in ("linear", "experts"):
        facts = LayerFacts(prefix=EXPERT, kind=kind, stored=headers(tensors))
        scheme = made.scheme_for(facts).scheme
        assert str(scheme) == W4A4
        assert made.decode(scheme, [tensors], facts).value_steps == ()
