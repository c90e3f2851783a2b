"""Integer layers of compressed-tensors, from stored tensors to values: bit for bit, or an error."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from quantdock.configs.compressed_tensors import CompressedTensorsConfig
from quantdock.errors import ConfigError, LoadError
from quantdock.numerics import CanonicalWeight, pack_bits
from quantdock.schemes import LayerFacts, StoredTensor

INT4 = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32}
INT8 = {"num_bits": 8, "type": "int", "strategy": "channel"}
PACKED, BYTES = "pack-quantized", "int-quantized"

# Golden vector -> what its file says of weights.
VECTORS: dict[str, dict[str, Any]] = {
    "ct-pack-quantized/w3_g64_asym_bf16": {
        "num_bits": 3,
        "group_size": 64,
        "symmetric": False,
    },
    "ct-pack-quantized/w4_channel_asym_bf16": {"num_bits": 4, "symmetric": False},
    "ct-pack-quantized/w4_channel_sym_bf16": {"num_bits": 4},
    "ct-pack-quantized/w8_channel_asym_f32": {"num_bits": 8, "symmetric": False},
    "ct-pack-quantized-gidx/w4_g32_asym_gidx": {
        "num_bits": 4,
        "group_size": 32,
        "symmetric": False,
        "actorder": "group",
    },
    "ct-pack-quantized-gidx/w8_g64_sym_gidx": {
        "num_bits": 8,
        "group_size": 64,
        "actorder": "group",
    },
    "ct-int-quantized/int8_channel_sym": {"num_bits": 8},
    "ct-int-quantized/int8_tensor_sym": {"num_bits": 8, "strategy": "tensor"},
}
# Too large to keep here.
SHARED: dict[str, dict[str, Any]] = {
    **{
        f"ct-pack-quantized/w{bits}a16_bf16": {"num_bits": bits, "group_size": 128}
        for bits in (2, 3, 4, 5, 7, 8)
    },
    "ct-pack-quantized/w6a16_f32": {"num_bits": 6, "group_size": 128},
    "ct-pack-quantized/w4a16_asym_f32": {
        "num_bits": 4,
        "group_size": 128,
        "symmetric": False,
    },
    "ct-int-quantized/w4afp8_bf16": {"num_bits": 4, "group_size": 128},
    "ct-int-quantized/w8a8_f32": {"num_bits": 8},
}


def make_config(weights: dict[str, Any], inputs: Any, form: str) -> CompressedTensorsConfig:
    group = {"targets": ["Linear"], "weights": weights, "input_activations": inputs}
    return CompressedTensorsConfig.from_config({"format": form, "config_groups": {"g": group}})


def decode(
    weights: dict[str, Any],
    tensors: dict[str, Tensor],
    form: str = PACKED,
    inputs: Any = None,
    shape: tuple[int, int] | None = None,
) -> CanonicalWeight:
    """Return the weight of a layer (of ``shape`` in the model) that stores ``tensors``."""
    config = make_config(weights, inputs, form)
    stored = {
        name: StoredTensor(dtype=str(t.dtype).removeprefix("torch."), shape=tuple(t.shape))
        for name, t in tensors.items()
    }
    facts = LayerFacts(prefix="a.b", stored=stored)
    decision = config.scheme_for(facts)
    config.refuse(decision, facts)
    assert decision.scheme is not None
    n, k = shape or config.weight_shape(decision.scheme, facts)
    filled = {}
    for slot in config.slots(decision.scheme, n, k, facts):
        spelling = slot.stored_as(tensors)
        assert spelling is not None and tuple(tensors[spelling].shape) in slot.shapes
        filled[slot.name] = tensors[spelling].reshape(slot.shape)
    assert len(filled) == len(tensors), "every tensor has its slot"
    return config.decode(decision.scheme, [filled], facts)


def _check(file: Path, args: dict[str, Any], form: str) -> None:
    vector = load_file(file)
    weights = {"type": "int", "strategy": "group" if "group_size" in args else "channel", **args}
    stored = {key[5:]: value for key, value in vector.items() if key.startswith("ckpt.")}
    rows, columns = vector["weight"].shape
    weight = decode(weights, stored, form, shape=(rows, columns))
    assert torch.equal(weight.dequantize(vector["dequant"].dtype), vector["dequant"])
    (segment,) = weight.segments
    if "zp_unpacked" in vector and segment.zero is not None:
        assert torch.equal(segment.zero, vector["zp_unpacked"].int() + (1 << args["num_bits"] - 1))
        assert segment.codes.dtype == torch.uint8
    assert (segment.zero is None) is args.get("symmetric", True)


@pytest.mark.parametrize("name", VECTORS)
def test_golden(golden: Path, name: str) -> None:
    form = BYTES if "ct-int" in name else PACKED
    _check(golden / f"{name}.safetensors", VECTORS[name], form)


@pytest.mark.parametrize("name", SHARED)
def test_golden_of_the_shared_folder(shared: Path, name: str) -> None:
    form = BYTES if "ct-int" in name else PACKED
    _check(shared / "golden" / f"{name}.safetensors", SHARED[name], form)


def packed(
    bits: int = 4, n: int = 8, k: int = 64, groups: int = 2, dense: bool = True
) -> tuple[dict[str, Tensor], Tensor]:
    """Return the tensors of a symmetric packed weight whose scales are 0.5, and its codes."""
    codes = torch.arange(n * k).view(n, k) * 7 % (1 << bits)
    tensors = {
        "weight_packed": pack_bits(codes.to(torch.uint8), bits=bits, dense=dense),
        "weight_scale": torch.full((n, groups), 0.5),
        "weight_shape": torch.tensor([n, k]),
    }
    return tensors, codes - (1 << bits - 1)


@pytest.mark.parametrize("bits", [1, 3, 5, 6, 7])
@pytest.mark.parametrize("dense", [True, False])
def test_older_releases_begin_each_word_afresh(bits: int, dense: bool) -> None:
    tensors, codes = packed(bits, dense=dense)
    weight = decode({**INT4, "num_bits": bits}, tensors)
    assert torch.equal(weight.segments[0].codes.int(), codes.int())
    assert torch.equal(weight.dequantize(), codes * 0.5)


@pytest.mark.parametrize("dense", [True, False])
def test_zero_points_are_packed_down_the_rows_or_one_a_byte(dense: bool) -> None:
    tensors, codes = packed(3, n=32, dense=dense)
    zero = torch.arange(64).view(32, 2) % 8
    words = pack_bits(zero.to(torch.uint8).T.contiguous(), bits=3, dense=dense).T.contiguous()
    args = {**INT4, "num_bits": 3, "symmetric": False}
    expected = 0.5 * (codes + 4 - zero.repeat_interleave(32, 1))
    for stored in (words, (zero - 4).to(torch.int8)):
        weight = decode(args, {**tensors, "weight_zero_point": stored})
        assert torch.equal(weight.dequantize(), expected)


def test_bytes_with_zero_points() -> None:
    codes = torch.tensor([[-128, -1, 0, 127]] * 2, dtype=torch.int8)
    tensors = {
        "weight": codes,
        "weight_scale": torch.tensor([[1.0], [-0.5]]),
        "weight_zero_point": torch.tensor([[-128], [3]], dtype=torch.int8),
    }
    weight = decode({**INT8, "symmetric": False}, tensors, BYTES)
    assert weight.dequantize().tolist() == [[0.0, 127, 128, 255], [65.5, 2, 1.5, -62]]


def test_columns_that_nobody_moved_are_in_order() -> None:
    tensors, codes = packed()
    for index in (torch.full((64,), -1), torch.arange(64) // 32):
        stored = {**tensors, "weight_g_idx": index.to(torch.int32)}
        assert torch.equal(decode(INT4, stored).dequantize(), codes * 0.5)
        ordered = decode({**INT4, "actorder": "group"}, stored).segments[0]
        assert ordered.group_index is not None
        assert ordered.group_index.tolist() == [0] * 32 + [1] * 32


def test_a_symmetric_file_may_store_zero_points_of_zero() -> None:
    tensors, codes = packed()
    eights = pack_bits(torch.full((2, 8), 8, dtype=torch.uint8), bits=4).T.contiguous()
    for zero in (eights, torch.zeros(8, 2, dtype=torch.int8)):
        weight = decode(INT4, {**tensors, "weight_zero_point": zero})
        assert weight.segments[0].zero is None
        assert torch.equal(weight.dequantize(), codes * 0.5)


STATIC = {"num_bits": 8, "type": "int", "strategy": "tensor", "dynamic": False}
PLAIN = {"weight": torch.ones(4, 8, dtype=torch.int8), "weight_scale": torch.ones(4, 1)}


def test_static_inputs_bring_scale_and_zero_point() -> None:
    scale = {"input_scale": torch.tensor([0.1])}
    zero = {"input_zero_point": torch.tensor([5], dtype=torch.int8)}
    weight = decode(INT8, PLAIN | scale | zero, BYTES, {**STATIC, "symmetric": False})
    assert weight.input_scale is not None and weight.input_zero is not None
    assert torch.equal(weight.input_scale, torch.tensor([0.1]))
    assert weight.input_zero.tolist() == [5]
    zero = {"input_zero_point": torch.tensor([0], dtype=torch.int8)}
    assert decode(INT8, PLAIN | scale | zero, BYTES, STATIC).input_zero is None
    with pytest.raises(LoadError, match=r"a\.b\.input_zero_point[\s\S]*a zero point is 5"):
        zero = {"input_zero_point": torch.tensor([5], dtype=torch.int8)}
        decode(INT8, PLAIN | scale | zero, BYTES, STATIC)


def index_that_moves(k: int = 64) -> Tensor:
    return (torch.arange(k) // 32).flip(0).to(torch.int32)


@pytest.mark.parametrize(
    ("args", "change", "message"),
    [
        ({}, {"weight_shape": torch.tensor([8, 72])}, r"\[8, 72\], which takes \[8, 9\] words"),
        ({}, {"weight_shape": torch.tensor([9, 64])}, r"it says \[9, 64\]"),
        ({}, {"weight_g_idx": index_that_moves()}, "moves 64 of 64 columns"),
        (
            {"actorder": "group"},
            {"weight_g_idx": index_that_moves() + 1},
            "it has 1 to 2; there are 2 groups",
        ),
        ({}, {"weight_zero_point": torch.ones(8, 2, dtype=torch.int8)}, "a zero point is 1"),
        (
            {"symmetric": False},
            {"weight_zero_point": torch.full((8, 2), 9, dtype=torch.int8)},
            "it has 9 to 9; num_bits allows -8 to 7",
        ),
    ],
)
def test_values_that_contradict_are_refused(
    args: dict[str, Any], change: dict[str, Tensor], message: str
) -> None:
    tensors, _ = packed()
    with pytest.raises(LoadError, match=rf"a\.b\.{next(iter(change))}[\s\S]*{message}"):
        decode({**INT4, **args}, tensors | change)


def test_codes_beyond_their_bits_are_refused() -> None:
    with pytest.raises(LoadError, match=r"weight[\s\S]*it has 1 to 100; num_bits allows -8 to 7"):
        codes = torch.ones(4, 32, dtype=torch.int8).fill_diagonal_(100)
        decode(INT4, {"weight": codes, "weight_scale": torch.ones(4, 1)}, BYTES)


FLOAT8 = torch.zeros(4, 8, dtype=torch.uint8).view(torch.float8_e4m3fn)


@pytest.mark.parametrize(
    ("args", "form", "tensors", "message"),
    [
        (INT8, BYTES, PLAIN | {"weight": FLOAT8}, "weight is float8_e4m3fn, not int8"),
        (INT8, BYTES, {"weight": PLAIN["weight"]}, "weight_scale is missing"),
        ({**INT8, "symmetric": False}, BYTES, PLAIN, "weight_zero_point is missing"),
        (INT8, BYTES, PLAIN | {"weight_scale": torch.ones(3, 1)}, r"is \[3, 1\], not \[4, 1\]"),
        ({**INT4, "group_size": 3}, BYTES, PLAIN, "of K = 8, not a multiple of 3"),
        (INT8, BYTES, PLAIN | {"weight": torch.ones(4, 8)}, "weight is stored as float32 beside"),
    ],
)
def test_headers_that_contradict_are_refused(
    args: dict[str, Any], form: str, tensors: dict[str, Tensor], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        decode(args, tensors, form)


@pytest.mark.parametrize(
    ("args", "change", "message"),
    [
        (
            {"num_bits": 8},
            {},
            r"weight_packed is \[8, 8\], not \[8, 16\], as num_bits = 8, group_size = 32, "
            r"symmetric = True says \(they fit num_bits = 4, group_size = 32, symmetric = True or "
            r"num_bits = 8, group_size = 16, symmetric = True\)",
        ),
        (
            {"group_size": 64},
            {},
            r"they fit num_bits = 2, group_size = 64, .* or num_bits = 4, group_size = 32, ",
        ),
        ({"symmetric": False}, {}, "weight_zero_point is missing"),
        ({"actorder": "group"}, {}, "weight_g_idx is missing"),
        ({}, {"weight_shape": None}, "weight_shape is missing"),
        (
            {"symmetric": False},
            {"weight_zero_point": torch.ones(2, 2, dtype=torch.int32)},
            r"weight_zero_point is \[2, 2\], not \[1, 2\]",
        ),
    ],
)
def test_words_that_contradict_the_json_are_refused(
    args: dict[str, Any], change: dict[str, Tensor | None], message: str
) -> None:
    tensors = {k: v for k, v in (packed()[0] | change).items() if v is not None}
    with pytest.raises(ConfigError, match=rf"a\.b\.[\s\S]*{message}"):
        decode({**INT4, **args}, tensors)
