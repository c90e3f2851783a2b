"""AutoRound's MX and NV layers: its words, and the tensors that compressed-tensors writes alike."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from quantdock.configs.auto_round import AutoRoundConfig
from quantdock.errors import ConfigError, MethodNotYetError
from quantdock.schemes import LayerFacts
from third_party import decode, decoded_layers, headers

MX4 = {"bits": 4, "group_size": 32, "data_type": "mx_fp", "sym": True, "act_bits": 16}
MX8 = {**MX4, "bits": 8}
NV4 = {**MX4, "group_size": 16, "data_type": "nv_fp"}
PACKED = {"packing_format": "auto_round:llm_compressor"}
UP = LayerFacts(prefix="model.layers.0.mlp.up_proj")
MXFP4, MXFP8 = "fp4_e2m1[1x32]:e8m0:even", "fp8_e4m3[1x32]:e8m0:ceil"
NVFP4 = "fp4_e2m1[1x16]:e4m3:second[*x*]"


def config(block: dict[str, Any], **fields: Any) -> AutoRoundConfig:
    return AutoRoundConfig.from_config({**block, **PACKED, **fields})


def acts(bits: int, kind: str, size: int | None = None) -> dict[str, Any]:
    return {"act_bits": bits, "act_data_type": kind, "act_group_size": size, "act_dynamic": True}


@pytest.mark.parametrize(
    ("block", "expected"),
    [
        (MX4, MXFP4),
        ({**MX4, **acts(4, "mx_fp", 32)}, f"{MXFP4} x {MXFP4}:dynamic"),
        ({**MX4, **acts(4, "mx_fp_rceil")}, f"{MXFP4} x fp4_e2m1[1x32]:e8m0:ceil:dynamic"),
        ({**MX8, **acts(8, "mx_fp_rceil", 32)}, f"{MXFP8} x {MXFP8}:dynamic"),
        (NV4, NVFP4),
        (
            {**NV4, **acts(4, "nv_fp4_with_static_gs", 16)},
            f"{NVFP4} x fp4_e2m1[1x16]:e4m3:dynamic:second[*x*]",
        ),
    ],
)
def test_words(block: Any, expected: str) -> None:
    assert str(config(block).scheme_for(UP).scheme) == expected


def test_a_layer_may_have_another_kind() -> None:
    made = config(MX4, extra_config={UP.prefix: {"data_type": "nv_fp", "group_size": 16}})
    assert str(made.scheme_for(UP).scheme) == NVFP4
    down = LayerFacts(prefix="model.layers.0.mlp.down_proj")
    assert str(made.scheme_for(down).scheme) == MXFP4


@pytest.mark.parametrize(
    ("folder", "block"),
    [("ct-mxfp4a16", MX4), ("ct-mxfp8", MX8), ("ct-nvfp4a16", NV4)],
)
def test_tensors_are_those_of_compressed_tensors(shared: Path, folder: str, block: Any) -> None:
    layers = list(decoded_layers(config(block), shared / "models" / folder))
    assert layers
    for layer in layers:
        assert torch.equal(layer.weight.dequantize(torch.bfloat16).float(), layer.real)


def test_a_static_second_scale_divides() -> None:
    made = config({**NV4, **acts(4, "nv_fp")})
    tensors = {
        "weight_packed": torch.full((16, 16), 0x22, dtype=torch.uint8),
        "weight_scale": torch.full((16, 2), 4.0).to(torch.float8_e4m3fn),
        "weight_global_scale": torch.tensor([16.0]),
        "input_global_scale": torch.tensor([32.0]),
    }
    facts = LayerFacts(prefix=UP.prefix, stored=headers(tensors))
    decision = made.scheme_for(facts)
    assert decision.scheme is not None, decision.because
    weight = decode(made, decision.scheme, tensors, facts)
    assert torch.equal(weight.dequantize(), torch.full((16, 32), 0.25))
    assert weight.input_scale is not None and weight.input_scale.tolist() == [1 / 32]


@pytest.mark.parametrize(
    ("block", "text"),
    [
        ({**MX4, "bits": 6}, "is mx_fp of 6 bits, packed as 'auto_round:llm_compressor'"),
        ({**NV4, "bits": 8}, "is nv_fp of 8 bits"),
        (
            {**MX4, "packing_format": "auto_round:auto_awq"},
            "is mx_fp of 4 bits, packed as 'auto_round:auto_awq'",
        ),
        ({**MX4, **acts(8, "mx_fp", 32)}, "has activations in mx_fp of 8 bits by 32 beside fp4"),
        ({**NV4, **acts(4, "nv_fp", 32)}, "has activations in nv_fp of 4 bits by 32"),
    ],
)
def test_other_kinds_are_named(block: Any, text: str) -> None:
    with pytest.raises(MethodNotYetError) as caught:
        AutoRoundConfig.from_config({**PACKED, **block})
    assert f"quantization_config {text}" in str(caught.value)


def test_groups_have_the_size_of_their_format() -> None:
    with pytest.raises(ConfigError, match="group_size is 128"):
        config({**MX4, "group_size": 128})
