"""Quark's tensors against its own packing, and what contradicts itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from quantdock.configs.quark import QuarkConfig
from quantdock.configs.quark_tensors import PLACES, unpack_four_bits
from quantdock.errors import FormatError
from quantdock.numerics.packing import pack_bits
from quantdock.schemes import LayerFacts
from third_party import block_of, decode, decoded_layers, headers

UP = "model.layers.0.mlp.up_proj"
GROUP = {"dtype": "int4", "qscheme": "per_group", "group_size": 32, "symmetric": True}


def config(weight: Any, activation: Any = None, **export: Any) -> QuarkConfig:
    said = {"weight": weight, "input_tensors": activation}
    return QuarkConfig.from_config({"global_quant_config": said, "export": export})


def decoded(made: QuarkConfig, tensors: dict[str, torch.Tensor]) -> Any:
    facts = LayerFacts(prefix=UP, stored=headers(tensors))
    decision = made.scheme_for(facts)
    assert decision.scheme is not None, decision.because
    return decode(made, decision.scheme, tensors, facts)


def packed(values: torch.Tensor, order: str = "reorder") -> torch.Tensor:
    """Return four-bit values [rows, count] in words along the last dimension, as Quark does."""
    rows, count = values.shape
    padded = torch.nn.functional.pad(values, (0, -count % 8)) & 15
    places = torch.tensor(PLACES[order]).argsort()
    words = padded.view(rows, -1, 8)[..., places].reshape(rows, -1)
    return pack_bits(words.to(torch.uint8), bits=4)


@pytest.mark.parametrize("name", ["int4_order", "int4_reorder", "uint4_order"])
def test_four_bits_are_quarks(golden: Path, name: str) -> None:
    dtype, order = name.split("_")
    vector = load_file(golden / "quark-pack" / f"{name}.safetensors")
    values = unpack_four_bits(vector["packed"], 64, order, signed=dtype == "int4")
    assert torch.equal(values.t().to(torch.int32), vector["values"])
    assert torch.equal(packed(vector["values"].t(), order), vector["packed"])


@pytest.mark.parametrize(
    ("folder", "scheme"),
    [
        ("quark-int8", "int8[*x*] x int8[*x*]"),
        ("quark-int4-wo-32", "int4[1x32]"),
        ("quark-int4-wo-32-order", "int4[1x32]"),
        ("quark-uint4-wo-32", "uint4[1x32]:zero"),
        ("quark-qwen3moe-fp8", "fp8_e4m3[*x*] x fp8_e4m3[*x*]"),
        ("quark-mxfp6-e2m3", "fp6_e2m3[1x32]:e8m0:even x fp6_e2m3[1x32]:e8m0:even:dynamic"),
        ("quark-mxfp6-e3m2", "fp6_e3m2[1x32]:e8m0:even x fp6_e3m2[1x32]:e8m0:even:dynamic"),
    ],
)
def test_third_party_weights_decode_bit_for_bit(shared: Path, folder: str, scheme: str) -> None:
    """Quark's own weights are in bfloat16, which is ours rounded once."""
    path = shared / "models" / folder
    layers = list(decoded_layers(QuarkConfig.from_config(block_of(path)), path))
    assert layers
    for layer in layers:
        assert str(layer.scheme) == scheme
        assert torch.equal(layer.weight.dequantize(torch.bfloat16).float(), layer.real)


def test_zero_points_of_signed_codes_become_unsigned() -> None:
    made = config({**GROUP, "dtype": "int8", "qscheme": "per_channel", "symmetric": False})
    codes = torch.tensor([[-128, 127], [5, 6]], dtype=torch.int8)
    tensors = {
        "weight": codes,
        "weight_scale": torch.tensor([0.5, 2.0]),
        "weight_zero_point": torch.tensor([-128, 4], dtype=torch.int8),
    }
    weight = decoded(made, tensors)
    (segment,) = weight.segments
    assert str(segment.spec) == "uint8[1x*]:zero"
    assert segment.codes.tolist() == [[0, 255], [133, 134]]
    assert segment.zero.tolist() == [[0], [132]]
    assert weight.dequantize().tolist() == [[0.0, 127.5], [2.0, 4.0]]


def test_rows_are_not_transposed_and_their_zero_points_are_packed() -> None:
    values = torch.arange(-8, 8).repeat(10, 1).to(torch.int8)
    zeros = torch.arange(-5, 5).to(torch.int8)
    tensors = {
        "weight": packed(values),
        "weight_scale": torch.arange(1.0, 11.0),
        "weight_zero_point": packed(zeros[None])[0],
    }
    made = config({**GROUP, "qscheme": "per_channel", "symmetric": False})
    weight = decoded(made, tensors)
    expected = (values - zeros[:, None]).float() * tensors["weight_scale"][:, None]
    assert torch.equal(weight.dequantize(), expected)


def test_a_whole_row_as_one_group_is_transposed_all_the_same() -> None:
    values = torch.arange(-8, 8)[None].repeat(12, 1).to(torch.int8) * torch.tensor([[1], [-1]] * 6)
    tensors = {
        "weight": packed(values.clamp(-8, 7).t()),
        "weight_scale": torch.arange(1.0, 13.0)[None],
    }
    weight = decoded(config({**GROUP, "group_size": -1}), tensors)
    assert weight.shape == (12, 16)
    expected = values.clamp(-8, 7).float() * torch.arange(1.0, 13.0)[:, None]
    assert torch.equal(weight.dequantize(), expected)


def test_eight_bits_in_groups_are_transposed() -> None:
    codes = torch.arange(64 * 3).view(64, 3).to(torch.int8)
    tensors = {"weight": codes, "weight_scale": torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])}
    weight = decoded(config({**GROUP, "dtype": "int8"}), tensors)
    assert weight.shape == (3, 64)
    scale = tensors["weight_scale"].t().repeat_interleave(32, dim=1)
    assert torch.equal(weight.dequantize(), codes.t().float() * scale)


DOUBLE = [
    {"dtype": "fp8_e4m3", "qscheme": "per_tensor", "is_dynamic": False},
    {"dtype": "int4", "qscheme": "per_channel", "ch_axis": 0, "is_dynamic": False},
]


def test_int4_in_fp8_has_two_levels_of_scales() -> None:
    values = torch.arange(-8, 8).repeat(12, 1).to(torch.int8)
    rows = torch.arange(1.0, 13.0)
    tensors = {
        "weight": packed(values),
        "weight_scale": torch.tensor([0.125]),
        "weight_scale_2": rows,
    }
    weight = decoded(config(DOUBLE), tensors)
    (segment,) = weight.segments
    assert str(segment.spec) == "int4[1x*]:second[*x*]"
    assert torch.equal(weight.dequantize(), values.float() * (rows[:, None] * 0.125))
    swapped = {**tensors, "weight_scale": rows, "weight_scale_2": torch.tensor([0.125])}
    decision = config(DOUBLE).scheme_for(LayerFacts(prefix=UP, stored=headers(swapped)))
    assert decision.error and "weight_scale_2 is [1], not [12, 1]" in decision.because


def static(zero: int) -> dict[str, torch.Tensor]:
    return {
        "weight": torch.ones(2, 4, dtype=torch.int8),
        "weight_scale": torch.tensor(0.5),
        "input_scale": torch.tensor(0.25),
        "input_zero_point": torch.tensor(zero, dtype=torch.int8),
    }


def test_static_activations_have_their_scale_and_zero_point() -> None:
    one = {"dtype": "int8", "qscheme": "per_tensor", "symmetric": True}
    weight = decoded(config(one, one), static(0))
    assert weight.input_scale.tolist() == [0.25] and weight.input_zero is None
    weight = decoded(config(one, {**one, "symmetric": False}), static(-3))
    assert weight.input_zero.tolist() == [-3]
    with pytest.raises(FormatError, match=r"up_proj\.input_zero_point is not 0, from -3 to -3"):
        decoded(config(one, one), static(-3))


def test_zero_points_of_symmetric_weights_are_checked() -> None:
    tensors = {
        "weight": torch.ones(64, 1, dtype=torch.int32),
        "weight_scale": torch.ones(2, 8),
        "weight_zero_point": packed(torch.tensor([[0] * 8, [0, 0, 3, 0, 0, -1, 0, 0]])),
    }
    with pytest.raises(FormatError, match=r"up_proj\.weight_zero_point is not 0, from -1 to 3"):
        decoded(config(GROUP), tensors)


@pytest.mark.parametrize(
    ("weight", "text"),
    [
        ({**GROUP, "group_size": 64}, "weight_scale is [4, 64], not [2, 64]"),
        ({**GROUP, "dtype": "int8"}, "weight is int32, not int8"),
        ({**GROUP, "qscheme": "per_channel"}, "weight_scale is [4, 64], not [128, 1]"),
    ],
)
def test_headers_that_contradict_the_json_are_an_error_with_numbers(weight: Any, text: str) -> None:
    tensors = {"weight": torch.zeros(128, 8, dtype=torch.int32), "weight_scale": torch.ones(4, 64)}
    decision = config(weight).scheme_for(LayerFacts(prefix=UP, stored=headers(tensors)))
    assert decision.error and f"{UP}.{text}" in decision.because
