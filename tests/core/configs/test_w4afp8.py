"""w4afp8: which layers are what, the order of the codes in a byte, and which files are its own."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from quantdock.configs.w4afp8 import W4AFp8Config
from quantdock.errors import ConfigError
from quantdock.platform import Platform
from quantdock.schemes import LayerFacts, StoredTensor
from third_party import decode, headers

BLOCK = "fp8_e4m3[128x128] x fp8_e4m3[1x128]:dynamic"
INT4 = "int4[1x128] x fp8_e4m3[*x*]"
EXPERT = "model.layers.3.mlp.experts.0.gate_proj"
MIXED = {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "kv_cache_quant_algo": None}


def decided(config: Any, prefix: str, kind: Any = "linear", **stored: StoredTensor) -> Any:
    return config.scheme_for(LayerFacts(prefix=prefix, kind=kind, stored=stored or None))


@pytest.mark.parametrize("block", [{"quant_method": "w4afp8"}, MIXED])
def test_experts_are_int4_and_all_else_is_fp8_in_blocks(block: dict[str, Any]) -> None:
    config = W4AFp8Config.from_config(block)
    assert str(decided(config, EXPERT, "experts").scheme) == INT4
    assert str(decided(config, "model.layers.3.mlp.shared_experts.up_proj").scheme) == BLOCK
    assert str(decided(config, "model.layers.3.self_attn.o_proj").scheme) == BLOCK
    assert decided(config, "lm_head", "head").kind == "unquantized"


def test_experts_that_are_stored_in_fp8_are_fp8() -> None:
    """The layer of multi-token prediction is, in some files."""
    stored = {
        "weight": StoredTensor(dtype="float8_e4m3fn", shape=(256, 128)),
        "weight_scale_inv": StoredTensor(dtype="float32", shape=(2, 1)),
    }
    config = W4AFp8Config.from_config({"quant_method": "w4afp8"})
    assert str(decided(config, EXPERT, "experts", **stored).scheme) == BLOCK


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_the_even_column_is_the_low_half_of_a_byte_in_twos_complement(dtype: torch.dtype) -> None:
    """0x98 is -8, then -7; 0x0f is -1, then 0; 0x71 is 1, then 7."""
    row = [0x98, 0x0F, 0x71] + [0] * 61 + [0x80] + [0] * 63
    tensors = {
        "weight": torch.tensor([row], dtype=torch.uint8).view(torch.int8),
        "weight_scale_inv": torch.tensor([[0.5, 2.0]]),
        "input_scale": torch.tensor([0.25], dtype=dtype),
    }
    config = W4AFp8Config.from_config({"quant_method": "w4afp8"})
    facts = LayerFacts(prefix=EXPERT, kind="experts", stored=headers(tensors))
    scheme = config.scheme_for(facts).scheme
    assert scheme is not None and config.weight_shape(scheme, facts) == (1, 256)
    weight = decode(config, scheme, tensors, facts)
    assert weight.dequantize()[0, :6].tolist() == [-4.0, -3.5, -0.5, 0.0, 0.5, 3.5]
    assert weight.dequantize()[0, 128:130].tolist() == [0.0, -16.0]
    assert weight.input_scale is not None and weight.input_scale.tolist() == [0.25]


def test_codes_of_another_layout_are_refused_with_numbers() -> None:
    stored = {
        "weight": StoredTensor(dtype="uint8", shape=(128, 256)),  # two rows a byte
        "weight_scale_inv": StoredTensor(dtype="float32", shape=(256, 2)),
    }
    decision = decided(W4AFp8Config.from_config(MIXED), EXPERT, "experts", **stored)
    assert decision.error and "[256, 2]" in decision.because and "[128, 4]" in decision.because


def test_a_block_of_another_algorithm_is_refused() -> None:
    with pytest.raises(ConfigError, match="quant_algo is 'NVFP4'"):
        W4AFp8Config.from_config({**MIXED, "quant_algo": "NVFP4"})


def test_files_that_are_mixed_and_name_no_layer_are_taken_over() -> None:
    device = Platform(name="demo", arch="one", device="demo")
    assert "no layer is named" in str(W4AFp8Config.claim(MIXED, None, device))
    for other in (
        {"quant_algo": "NVFP4"},
        {"quantized_layers": {"a": {"quant_algo": "FP8"}}},
        {"moe_quant_algo": "NVFP4"},
        {"quant_method": "fp8"},
    ):
        assert W4AFp8Config.claim({**MIXED, **other}, None, device) is None
