"""ModelOpt's algorithms: what each stores, against its own export, and what contradicts itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from quantdock.configs.modelopt import ModelOptConfig
from quantdock.configs.modelopt_layers import read_algorithm, unpack_rows
from quantdock.errors import ConfigError, MethodNotYetError
from quantdock.numerics import quantize
from quantdock.schemes import LayerFacts, StoredTensor
from third_party import block_of, decode, decoded_layers, headers

UP = "model.layers.0.mlp.up_proj"
NVFP4 = "fp4_e2m1[1x16]:e4m3:second[*x*]"
NVFP4_INPUT = "fp4_e2m1[1x16]:e4m3:dynamic:second[*x*]"
GOLDEN = {
    "fp8_pb_wo_bf16": ("FP8_PB_WO", "fp8_e4m3[128x128]"),
    "fp8_tensor_bf16": ("FP8", "fp8_e4m3[*x*]"),
    "int4_awq_bf16": ("W4A16_AWQ", "int4[1x64]"),
    "int4_awq_f32": ("W4A16_AWQ", "int4[1x64]"),
    "int8_wo_f32": ("W8A16", "int8[1x*]"),
    "int8_wo_bf16": ("W8A16", "int8[1x*]"),
}


def reader(algorithm: str, **fields: Any) -> Any:
    return read_algorithm({"quant_algo": algorithm, **fields}, "quantization_config")


def scheme(made: Any, **stored: StoredTensor) -> str:
    return str(made.decide(LayerFacts(prefix=UP, stored=stored or None), None).scheme)


@pytest.mark.parametrize(
    ("algorithm", "expected"),
    [
        ("FP8", "fp8_e4m3[*x*] x fp8_e4m3[*x*]"),
        ("fp8_pb_wo", "fp8_e4m3[128x128]"),
        ("FP8_PER_CHANNEL_PER_TOKEN", "fp8_e4m3[1x*] x fp8_e4m3[1x*]:dynamic"),
        ("W8A16", "int8[1x*]"),
        ("W8A8_SQ_PER_CHANNEL", "int8[1x*] x int8[*x*] + input multiplier"),
        ("W4A16_AWQ", "int4[1x128] + input multiplier"),
        ("NVFP4", f"{NVFP4} x {NVFP4_INPUT}"),
        ("NVFP4_AWQ", f"{NVFP4} x {NVFP4_INPUT} + input multiplier"),
        ("W4A16_NVFP4", NVFP4),
        ("MXFP8", "fp8_e4m3[1x32]:e8m0:ceil x fp8_e4m3[1x32]:e8m0:ceil:dynamic"),
    ],
)
def test_algorithms(algorithm: str, expected: str) -> None:
    assert scheme(reader(algorithm)) == expected


@pytest.mark.parametrize("name", GOLDEN)
def test_third_party_vectors_decode_bit_for_bit(shared: Path, golden: Path, name: str) -> None:
    """ModelOpt's codes are ours by its own scales, so the decoded weights are too."""
    kept = golden / "modelopt-weight" / f"{name}.safetensors"
    vector = load_file(
        kept if kept.is_file() else shared / "golden" / "modelopt-weight" / kept.name
    )
    algorithm, spec = GOLDEN[name]
    tensors = {key.removeprefix("ckpt."): t for key, t in vector.items() if key != "w"}
    if spec.startswith("fp8"):
        tensors["weight"] = tensors["weight"].view(torch.float8_e4m3fn)
    if algorithm == "FP8":
        tensors["input_scale"] = torch.ones(())
    facts = LayerFacts(prefix=UP, stored=headers(tensors))
    made = reader(algorithm, group_size=64)
    found = made.decide(facts, None).scheme
    assert str(found.weight) == spec
    weight = decode(made, found, tensors, facts)
    (segment,) = weight.segments
    values, scale = vector["w"], segment.scale
    if algorithm == "FP8":  # it divides by a scalar, and so in the weight's own dtype
        values, scale = values / vector["ckpt.weight_scale"], torch.ones(1, 1)
    ours = quantize(values, found.weight, scale=scale).codes
    assert torch.equal(segment.codes.view(torch.uint8), ours.view(torch.uint8))


@pytest.mark.parametrize("name", ["modelopt_bf16", "modelopt_f32"])
def test_nvfp4_is_modelopts(shared: Path, golden: Path, name: str) -> None:
    kept = golden / "nvfp4" / f"{name}.safetensors"
    vector = load_file(kept if kept.is_file() else shared / "golden" / "nvfp4" / kept.name)
    tensors = {key.removeprefix("ckpt."): t for key, t in vector.items() if key.startswith("ckpt.")}
    tensors["weight_scale"] = tensors["weight_scale"].view(torch.float8_e4m3fn)
    tensors["input_scale"] = torch.tensor(0.25)
    facts = LayerFacts(prefix=UP, stored=headers(tensors))
    made = reader("NVFP4")
    weight = decode(made, made.decide(facts, None).scheme, tensors, facts)
    assert torch.equal(weight.dequantize(), vector["dequant"])
    assert weight.input_scale.tolist() == [0.25]
    alone = reader("W4A16_NVFP4")
    weight = decode(alone, alone.decide(facts, None).scheme, tensors, facts)
    assert torch.equal(weight.dequantize(), vector["dequant"]) and weight.input_scale is None


def test_mxfp8_has_exponent_bytes() -> None:
    tensors = {
        "weight": torch.ones(2, 160).to(torch.float8_e4m3fn),
        "weight_scale": torch.tensor([[120, 125, 127, 130, 140]] * 2, dtype=torch.uint8),
    }
    expected = torch.tensor([[0.0078125, 0.25, 1.0, 8.0, 8192.0]] * 2)
    for stored in (tensors["weight_scale"], tensors["weight_scale"].view(torch.float8_e8m0fnu)):
        given = {**tensors, "weight_scale": stored}
        facts = LayerFacts(prefix=UP, stored=headers(given))
        made = reader("MXFP8")
        weight = decode(made, made.decide(facts, None).scheme, given, facts)
        assert torch.equal(weight.dequantize()[:, ::32], expected)


CHECKPOINTS = {
    "modelopt-fp8": ["fp8_e4m3[*x*] x fp8_e4m3[*x*]"] * 2,
    "modelopt-fp8-pb-wo": ["fp8_e4m3[128x128]"] * 2,
    "modelopt-fp8-pcpt": ["fp8_e4m3[1x*] x fp8_e4m3[1x*]:dynamic"] * 2,
    "modelopt-int4-awq": ["int4[1x128] + input multiplier", "int4[1x128]"],
    "modelopt-int8-sq": ["int8[1x*] x int8[*x*] + input multiplier"] * 2,
    "modelopt-int8-wo": ["int8[1x*]"] * 2,
    "modelopt-nvfp4-w4a16": [NVFP4] * 2,
}


@pytest.mark.parametrize("folder", CHECKPOINTS)
def test_third_party_weights_decode_bit_for_bit(shared: Path, folder: str) -> None:
    path = shared / "models" / folder
    layers = list(decoded_layers(ModelOptConfig.from_config(block_of(path)), path))
    assert [str(layer.scheme) for layer in layers] == CHECKPOINTS[folder]
    for layer in layers:
        assert torch.equal(layer.weight.dense(), layer.real)


def test_two_rows_share_a_byte() -> None:
    packed = torch.tensor([[0x80, 0x7F], [0x21, 0xFE]], dtype=torch.uint8)
    assert unpack_rows(packed).tolist() == [[0, -1], [-8, 7], [1, -2], [2, -1]]


def tensor(dtype: str, *shape: int) -> StoredTensor:
    return StoredTensor(dtype=dtype, shape=shape)


def test_headers_complete_what_the_json_leaves_out() -> None:
    codes = tensor("uint8", 64, 256)
    made = reader("W4A16_AWQ")
    assert scheme(made, weight=codes, weight_scale=tensor("float32", 128, 2)) == "int4[1x128]"
    assert made.notes() == ()
    narrow = {"weight": codes, "weight_scale": tensor("float32", 128, 8)}
    multiplied = {**narrow, "pre_quant_scale": tensor("bfloat16", 256)}
    assert scheme(made, **multiplied) == "int4[1x32] + input multiplier"
    assert made.notes() == (
        "model.layers.*.mlp.up_proj is stored as int4[1x32], though quantization_config: "
        "quant_algo = 'W4A16_AWQ'; the stored tensors decide",
    )
    whole = tensor("float32", 128, 1)
    assert scheme(reader("W4A16_AWQ"), weight=tensor("uint8", 64, 64), weight_scale=whole) == (
        "int4[1x128]"
    )


def test_shards_must_agree() -> None:
    made = reader("W4A16_AWQ")
    shards = {
        f"{shard}.{last}": stored
        for shard in ("q_proj", "k_proj")
        for last, stored in (
            ("weight", tensor("uint8", 64, 256)),
            ("weight_scale", tensor("float32", 128, 2)),
        )
    }
    fused = "model.layers.0.self_attn.qkv_proj"
    decision = made.decide(
        LayerFacts(
            prefix=fused, stored={**shards, "q_proj.pre_quant_scale": tensor("bfloat16", 256)}
        ),
        None,
    )
    assert decision.error and "is stored for model.layers.0.self_attn.q_proj and not for" in (
        decision.because
    )
    narrow = {**shards, "k_proj.weight_scale": tensor("float32", 128, 4)}
    decision = made.decide(LayerFacts(prefix=fused, stored=narrow), None)
    assert decision.error and "groups of ['128', '64'] columns" in decision.because


@pytest.mark.parametrize(
    ("stored", "text"),
    [
        (
            {"weight": tensor("uint8", 64, 256), "weight_scale": tensor("float32", 128, 3)},
            "weight_scale is [128, 3], not [128, 2]",
        ),
        (
            {"weight": tensor("int8", 128, 256), "weight_scale": tensor("float32", 128, 2)},
            "weight is int8, not uint8",
        ),
    ],
)
def test_headers_that_cannot_be_are_an_error_with_numbers(stored: Any, text: str) -> None:
    decision = reader("W4A16_AWQ").decide(LayerFacts(prefix=UP, stored=stored), None)
    assert decision.error and f"{UP}.{text}" in decision.because


def test_static_activations_need_their_scale() -> None:
    stored = {"weight": tensor("float8_e4m3fn", 8, 8), "weight_scale": tensor("float32")}
    decision = reader("FP8").decide(LayerFacts(prefix=UP, stored=stored), None)
    assert decision.error and f"{UP}.input_scale is missing" in decision.because


@pytest.mark.parametrize("algorithm", ["NVFP4_SVD", "W4A8_NVFP4_FP8", "W4A8_AWQ", None])
def test_algorithms_to_come_are_named_with_a_remedy(algorithm: str | None) -> None:
    with pytest.raises(MethodNotYetError) as caught:
        read_algorithm({"quant_algo": algorithm}, "quantization_config")
    assert f"quantization_config says quant_algo = {algorithm!r}" in str(caught.value)
    assert "supported: FP8, FP8_PER_CHANNEL_PER_TOKEN, FP8_PB_WO, W8A16" in str(caught.value)
    assert "quantization='fp8_per_channel'" in caught.value.todo


@pytest.mark.parametrize(
    ("word", "meant"),
    [("FP9", "'FP8'"), ("mixed_precison", "'MIXED_PRECISION'"), ("NVFP", "'NVFP4'"), ("Q7", "")],
)
def test_algorithms_that_nobody_knows_are_called_so(word: str, meant: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_algorithm({"quant_algo": word}, "quantization_config")
    error = caught.value
    assert error.what == f"modelopt: quant_algo is {word!r}, which modelopt is not known to write."
    assert error.why[0] == "found at quantization_config" and "W4A8_AWQ" in error.why[2]
    assert error.todo.startswith(f"Did you mean {meant}" if meant else "Correct the field")


def test_zero_points_and_impossible_groups() -> None:
    with pytest.raises(MethodNotYetError, match="has_zero_point = true"):
        reader("W4A16_AWQ", has_zero_point=True)
    with pytest.raises(ConfigError, match="group_size is -3"):
        reader("W4A16_AWQ", group_size=-3)
    assert scheme(reader("W4A16_AWQ", group_size=0)) == "int4[1x128] + input multiplier"
    with pytest.raises(ConfigError, match="group_size is 32") as caught:
        reader("NVFP4", group_size=32)
    assert "NVFP4 has no other" in str(caught.value)
