"""AutoRound's packings against its own words, data types, and what is said of the others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from quantdock.configs.auto_round import AutoRoundConfig
from quantdock.configs.auto_round_layers import read_scheme
from quantdock.configs.awq import AWQConfig
from quantdock.configs.compressed_tensors import CompressedTensorsConfig
from quantdock.configs.gptq import GPTQConfig
from quantdock.errors import ConfigError, MethodNotYetError
from quantdock.schemes import LayerFacts
from third_party import block_of, decode, decoded_layers, headers

UP = LayerFacts(prefix="model.layers.0.mlp.up_proj")
INT = {"bits": 4, "group_size": 32, "sym": True, "data_type": "int"}
FP8 = {"bits": 8, "group_size": -1, "sym": True, "data_type": "fp"}
ACT = {"act_bits": 8, "act_data_type": "fp", "act_group_size": 0, "act_dynamic": False}


def read(block: Any) -> Any:
    return read_scheme(block, "the block")


def scheme(block: Any) -> str:
    return str(read(block).decide(UP, None).scheme)


VECTORS = [
    *(f"auto_round_b{bits}_asym" for bits in range(2, 9)),
    *("auto_gptq_b3_asym", "auto_gptq_b5_asym", "auto_round_b4_sym", "auto_gptq_b6_sym"),
]


@pytest.mark.parametrize("name", VECTORS)
def test_words_decode_into_the_weights_that_autoround_packed(golden: Path, name: str) -> None:
    """Its own packing has zero points as they are, that of GPTQ has them minus one."""
    tensors = load_file(golden / "auto-round" / f"{name}.safetensors")
    real = tensors.pop("dequant")
    word, bits, sym = name.replace("auto_", "auto-").split("_")
    block = {
        "bits": int(bits[1:]),
        "group_size": 32,
        "sym": sym == "sym",
        "packing_format": {"auto-round": "auto_round", "auto-gptq": "auto_round:auto_gptq"}[word],
    }
    made = read(block)
    facts = LayerFacts(prefix=UP.prefix, stored=headers(tensors))
    decision = made.decide(facts, None)
    assert decision.source.startswith(f"the block: bits = {bits[1:]}, group_size = 32, sym = ")
    assert torch.equal(decode(made, decision.scheme, tensors, facts).dequantize(), real)


CHECKPOINTS = {
    "autoround-native-w4-g32": (AutoRoundConfig, "int4[1x32]"),
    "autoround-gptq-w4-g32": (GPTQConfig, "int4[1x32]"),
    "autoround-gptq-w4-asym": (GPTQConfig, "uint4[1x32]:zero"),
    "autoround-gptq-w2-g32": (GPTQConfig, "int2[1x32]"),
    "autoround-awq-w4-g32": (AWQConfig, "uint4[1x32]:zero"),
    "autoround-llmc-fp8": (CompressedTensorsConfig, "fp8_e4m3[1x*] x fp8_e4m3[*x*]"),
}


@pytest.mark.parametrize("folder", CHECKPOINTS)
def test_third_party_weights_decode_bit_for_bit(shared: Path, folder: str) -> None:
    """In every format that AutoRound exports; its symmetric scales are negative, too."""
    path, (kind, expected) = shared / "models" / folder, CHECKPOINTS[folder]
    layers = list(decoded_layers(kind.from_config(block_of(path)), path))
    assert len(layers) == 2
    for layer in layers:
        assert str(layer.scheme) == expected
        assert torch.equal(layer.weight.dequantize(), layer.real)
        if expected.startswith("int"):
            assert float(layer.weight.segments[0].scale.min()) < 0


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({}, "int4[1x32]"),
        ({"packing_format": "auto_round:gptq:exllamav2"}, "int4[1x32]"),
        ({"packing_format": "auto_round:auto_awq", "sym": False}, "uint4[1x32]:zero"),
        ({"backend": "auto_round:gptqmodel", "bits": 8, "group_size": -1}, "int8[1x*]"),
        ({"act_bits": 16, "data_type": None}, "int4[1x32]"),
    ],
)
def test_integers(more: Any, expected: str) -> None:
    assert scheme({**INT, **more}) == expected


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        (ACT, "fp8_e4m3[1x*] x fp8_e4m3[*x*]"),
        ({**ACT, "act_dynamic": True}, "fp8_e4m3[1x*] x fp8_e4m3[*x*]:dynamic"),
        (
            {**ACT, "act_dynamic": True, "act_group_size": -1},
            "fp8_e4m3[1x*] x fp8_e4m3[1x*]:dynamic",
        ),
        (
            {**ACT, "act_dynamic": True, "act_group_size": 128, "group_size": [128, 128]},
            "fp8_e4m3[128x128] x fp8_e4m3[1x128]:dynamic",
        ),
        ({"group_size": 0}, "fp8_e4m3[*x*]"),
        ({"data_type": "fp8_e5m2"}, "fp8_e5m2[1x*]"),
    ],
)
def test_floats(more: Any, expected: str) -> None:
    assert scheme({**FP8, **more}) == expected


@pytest.mark.parametrize("more", [{"bits": 16}, {"data_type": "float"}, {"data_type": "bf16"}])
def test_sixteen_bits_are_left_as_they_are(more: Any) -> None:
    assert read({**INT, **more}) is None


@pytest.mark.parametrize(
    ("block", "text"),
    [
        ({**INT, "data_type": "mx_fp"}, "is mx_fp of 4 bits, packed as"),
        ({**INT, "data_type": "nv_fp"}, "is nv_fp of 4 bits"),
        ({**INT, "data_type": "int_asym_dq"}, "is int_asym_dq of 4 bits"),
        ({**INT, **ACT}, "has activations in fp of 8 bits beside integer weights"),
        ({**INT, "packing_format": "mlx"}, "is packed as 'mlx'"),
        ({**INT, "packing_format": "auto_round:fake"}, "is packed as 'auto_round:fake'"),
        ({**FP8, **ACT, "act_data_type": "int"}, "has activations in int of 8 bits beside fp8"),
    ],
)
def test_kinds_to_come_are_named_with_a_remedy(block: Any, text: str) -> None:
    with pytest.raises(MethodNotYetError) as caught:
        read(block)
    assert f"the block {text}" in str(caught.value)
    assert "quantization='fp8_per_channel'" in caught.value.todo


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ({"bits": 9}, "bits is 9"),
        ({"bits": None}, "bits is None"),
        ({"group_size": None}, "group_size is None"),
        ({"group_size": 0}, "group_size is 0"),
        ({"sym": "yes"}, "sym is 'yes'"),
        ({"packing_format": "auto_round:auto_awq", "bits": 3}, "bits is 3"),
    ],
)
def test_impossible_fields_name_field_and_value(more: Any, text: str) -> None:
    with pytest.raises(ConfigError, match="auto-round: the block: ") as caught:
        read({**INT, **more})
    assert text in str(caught.value)


def test_headers_that_contradict_the_json_say_what_would_fit() -> None:
    tensors = {
        "qweight": torch.zeros(16, 64, dtype=torch.int32),
        "qzeros": torch.zeros(4, 8, dtype=torch.int32),
        "scales": torch.ones(4, 64, dtype=torch.float16),
    }
    facts = LayerFacts(prefix=UP.prefix, stored=headers(tensors))
    assert str(read(INT).decide(facts, None).scheme) == "int4[1x32]"
    decision = read({**INT, "bits": 8}).decide(facts, None)
    assert decision.error
    assert "bits = 8, group_size = 32 says (they fit bits = 4, group_size = 32)" in decision.because


@pytest.mark.parametrize(
    ("field", "word", "meant"),
    [("data_type", "nv_pf", "'nv_fp'"), ("packing_format", "auto_round:auto_gtpq", "auto_gptq'")],
)
def test_words_that_nobody_knows_are_called_so(field: str, word: str, meant: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read({**INT, field: word})
    assert caught.value.what == (
        f"auto-round: {field} is {word!r}, which auto-round is not known to write."
    )
    assert meant in caught.value.todo.partition("?")[0]


@pytest.mark.parametrize(
    "more",
    [
        *({"data_type": word} for word in ("fp8_to_int_sym", "block_fp8", "opt_rtn_int_sym")),
        {"backend": "auto_round:tritonv2_zp"},
        {"backend": "autoround:exllamav2"},
    ],
)
def test_words_that_autoround_writes_and_engines_are_to_come(more: Any) -> None:
    block = {key: value for key, value in INT.items() if key != "packing_format"}
    with pytest.raises(MethodNotYetError):
        read({**block, **more})
