"""Slots and decoding of fp8 weights: S03, S07, S17, S18, S36."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import torch
from torch import Tensor

from quantdock.configs.fp8 import Fp8Config
from quantdock.methods.slot import Slot
from quantdock.numerics.canonical import CanonicalWeight
from quantdock.schemes import LayerFacts, Scheme, StoredTensor, parse_scheme

FLOAT8 = torch.float8_e4m3fn


def decode(
    block: Mapping[str, object], tensors: dict[str, Tensor], *others: dict[str, Tensor]
) -> CanonicalWeight:
    """Return the decoded weight of a layer whose file stores ``tensors`` (of each shard)."""
    config = Fp8Config.from_config({"quant_method": "fp8", **block})
    shards = (tensors, *others)
    facts = LayerFacts(prefix="a.q_proj", stored=headers(tensors))
    scheme = config.scheme_for(facts).scheme
    assert scheme is not None
    stored = []
    for shard in shards:
        n, k = shard["weight"].shape
        stored.append(fit(config.slots(scheme, n, k, facts), shard))
    return config.decode(scheme, stored, facts)


def headers(tensors: dict[str, Tensor]) -> dict[str, StoredTensor]:
    return {
        name: StoredTensor(dtype=str(t.dtype).removeprefix("torch."), shape=tuple(t.shape))
        for name, t in tensors.items()
    }


def fit(slots: tuple[Slot, ...], tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors by slot, as loading does; every tensor must find a slot."""
    filled = {}
    for name, tensor in tensors.items():
        slot = next(slot for slot in slots if name in slot.spellings)
        assert str(tensor.dtype).removeprefix("torch.") in slot.dtypes
        assert tuple(tensor.shape) in slot.shapes
        filled[slot.name] = tensor.reshape(slot.shape)
    missing = [slot.name for slot in slots if slot.name not in filled and slot.default is None]
    assert not missing
    return filled


def ones(n: int = 256, k: int = 256, value: float = 1.0) -> Tensor:
    return torch.full((n, k), value).to(FLOAT8)


BLOCK = {"weight_block_size": [128, 128]}
STATIC = {"activation_scheme": "static"}


class TestEverySpelling:
    """S03: each name of a scale multiplies."""

    def test_block(self) -> None:
        weight = decode(BLOCK, {"weight": ones(), "weight_scale_inv": torch.full((2, 2), 0.5)})
        assert torch.equal(weight.dequantize(), torch.full((256, 256), 0.5))

    @pytest.mark.parametrize(
        ("weight_scale", "input_scale"),
        [
            ("weight_scale_inv", "activation_scale"),
            ("weight_scale", "input_scale"),
            ("qscale_weight", "qscale_act"),
            ("scale", "input_scale_inv"),
        ],
    )
    @pytest.mark.parametrize("shape", [(), (1,), (1, 1)])
    def test_static_tensor(
        self, weight_scale: str, input_scale: str, shape: tuple[int, ...]
    ) -> None:
        tensors = {
            "weight": ones(),
            weight_scale: torch.full(shape, 0.5, dtype=torch.bfloat16),
            input_scale: torch.full(shape, 0.25, dtype=torch.bfloat16),
        }
        weight = decode(STATIC, tensors)
        assert torch.equal(weight.dequantize(), torch.full((256, 256), 0.5))
        assert weight.input_scale is not None
        assert weight.input_scale.tolist() == [0.25]
        assert weight.input_scale.dtype == torch.float32

    def test_mistral_native_values(self) -> None:
        tensors = {
            "weight": ones(),
            "qscale_weight": torch.tensor(0.01),
            "qscale_act": torch.tensor(0.05),
        }
        weight = decode(STATIC, tensors)
        assert weight.segments[0].scale.tolist() == [[pytest.approx(0.01)]]
        assert weight.input_scale is not None
        assert weight.input_scale.tolist() == [pytest.approx(0.05)]


class TestEqualShapes:
    """S17: scales are reshaped by count and granularity."""

    @pytest.mark.parametrize("shape", [(), (1,)])
    def test_tensor(self, shape: tuple[int, ...]) -> None:
        weight = decode({}, {"weight": ones(128), "weight_scale": torch.full(shape, 0.25)})
        assert weight.segments[0].scale.shape == (1, 1)
        assert torch.equal(weight.dequantize(), torch.full((128, 256), 0.25))

    @pytest.mark.parametrize("shape", [(128,), (128, 1)])
    def test_channel(self, shape: tuple[int, ...]) -> None:
        scale = 0.01 * torch.arange(1, 129)
        weight = decode({}, {"weight": ones(128), "weight_scale": scale.reshape(shape)})
        assert torch.equal(weight.dequantize(), scale[:, None].expand(128, 256))

    @pytest.mark.parametrize("shape", [(1, 2), (1, 1, 2, 1), (2,)])
    @pytest.mark.parametrize("name", ["weight_scale", "weight_scale_inv"])
    def test_block(self, shape: tuple[int, ...], name: str) -> None:
        scale = torch.tensor([1.0, 2.0]).reshape(shape)
        dense = decode(BLOCK, {"weight": ones(128), name: scale}).dequantize()
        assert torch.equal(dense[:, :128], torch.ones(128, 128))
        assert torch.equal(dense[:, 128:], torch.full((128, 128), 2.0))

    def test_ragged_block(self) -> None:
        scale = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
        dense = decode(BLOCK, {"weight": ones(192, 200), "weight_scale_inv": scale}).dequantize()
        assert dense[[0, 0, 128, 191], [0, 199, 127, 128]].tolist() == [1.0, 2.0, 3.0, 4.0]


def test_exponent_bytes_are_bits_not_values() -> None:
    """S07: float8_e8m0fnu and raw bytes give 2^(byte - 127)."""
    exponents = torch.tensor([[120, 125, 127, 130, 140]], dtype=torch.uint8)
    block = {"weight_block_size": [1, 32]}
    for scale in (exponents, exponents.view(torch.float8_e8m0fnu)):
        weight = decode(block, {"weight": ones(1, 160), "weight_scale_inv": scale})
        assert weight.dequantize()[0, ::32].tolist() == [0.0078125, 0.25, 1.0, 8.0, 8192.0]


def test_raw_bytes_are_codes() -> None:
    raw = ones(8, 8, 1.5).view(torch.uint8)
    weight = decode({}, {"weight": raw, "weight_scale": torch.tensor(2.0)})
    assert weight.segments[0].codes.dtype == FLOAT8
    assert torch.equal(weight.dequantize(), torch.full((8, 8), 3.0))


def test_shards_keep_their_own_scales() -> None:
    """S18: nothing is folded while decoding, and codes are the file's."""
    shards = [
        {
            "weight": ones(n, 256, 16.0),
            "weight_scale": torch.tensor(s),
            "input_scale": torch.tensor(i),
        }
        for n, s, i in ((256, 0.5, 0.1), (128, 0.25, 0.2), (128, 1.0, 0.3))
    ]
    weight = decode(STATIC, *shards)
    assert [segment.scale.item() for segment in weight.segments] == [0.5, 0.25, 1.0]
    assert weight.shape == (512, 256)
    assert weight.input_scale is not None
    assert weight.input_scale.tolist() == pytest.approx([0.1, 0.2, 0.3])
    assert weight.value_steps == ()
    sums = weight.dequantize() @ torch.ones(256)
    assert sums[[0, 255, 256, 384]].tolist() == [2048.0, 2048.0, 1024.0, 4096.0]


def slots_of(text: str, stored: dict[str, StoredTensor] | None) -> dict[str, Slot]:
    scheme: Scheme = parse_scheme(text)
    facts = LayerFacts(prefix="a", stored=stored)
    return {slot.name: slot for slot in Fp8Config().slots(scheme, 256, 384, facts)}


def test_slots_say_what_one_entry_covers() -> None:
    slots = slots_of("fp8_e4m3[128x128] x fp8_e4m3[1x128]:dynamic", {})
    assert list(slots) == ["weight", "weight_scale_inv"]
    scale = slots["weight_scale_inv"]
    assert (scale.shape, scale.row_tile, scale.col_tile, scale.default) == ((2, 3), 128, 128, None)
    assert set(scale.spellings) >= {"weight_scale", "weight_scale_inv", "scale", "qscale_weight"}
    assert set(scale.dtypes) == {"float32", "bfloat16", "float16", "uint8", "float8_e8m0fnu"}
    assert slots["weight"].dtypes == ("float8_e4m3fn", "uint8")


def test_input_scale_is_required_where_static_and_optional_where_dynamic() -> None:
    assert slots_of("fp8_e4m3[*x*] x fp8_e4m3[*x*]", {})["input_scale"].default is None
    dynamic = "fp8_e4m3[*x*] x fp8_e4m3[1x*]:dynamic"
    assert slots_of(dynamic, None)["input_scale"].default == 1.0
    one = StoredTensor(dtype="float32", shape=())
    assert slots_of(dynamic, {"activation_scale": one})["input_scale"].default == 1.0
    assert "input_scale" not in slots_of(dynamic, {"weight_scale": one})
