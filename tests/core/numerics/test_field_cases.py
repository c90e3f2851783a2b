"""Numeric faults that users of other engines reported, as values that must come out right."""

from __future__ import annotations

import pytest
import torch

from quantdock.formats import parse_spec
from quantdock.numerics import (
    decode,
    decode_scale,
    dequantize,
    encode_scale,
    expand_scale,
    quantize,
    to_fnuz,
)


class TestExponentBytes:
    """e8m0 scales copied or converted by value (sgl-project/sglang#26701)."""

    BYTES = torch.tensor([[120, 125, 127, 130, 140]], dtype=torch.uint8)
    VALUES = (0.0078125, 0.25, 1.0, 8.0, 8192.0)

    @pytest.mark.parametrize("storage", ["uint8", "float8_e8m0fnu"])
    def test_both_storages_scale_by_their_bits(self, storage):
        stored = self.BYTES.view(getattr(torch, storage))
        weight = torch.ones(1, 160).to(torch.float8_e4m3fn)
        spec = parse_spec("fp8_e4m3[1x32]:e8m0:ceil")
        real = dequantize(weight, stored, spec)
        assert real[0, ::32].tolist() == list(self.VALUES)
        assert torch.equal(real, expand_scale(torch.tensor([self.VALUES]), spec, 1, 160))
        again = encode_scale(decode_scale(stored), storage)
        assert torch.equal(again.view(torch.uint8), self.BYTES)

    def test_bf16_scales_of_another_layer_are_values(self):
        scale = torch.tensor([[0.0078125, 120.0]], dtype=torch.bfloat16)
        assert decode_scale(scale).tolist() == [[0.0078125, 120.0]]


class TestFnuz:
    """e4m3fn bytes used as e4m3fnuz (vllm-project/vllm#42247, sgl-project/sglang#38446)."""

    WEIGHT = torch.tensor([[1.0, -1.0, -0.0, 2.0**-9, 448.0]])
    HALF = (0.5, -0.5, 0.0, 2.0**-10, 224.0)

    @pytest.mark.parametrize(
        ("scale", "doubled"),
        [
            (torch.tensor(0.5), torch.tensor(1.0)),
            (torch.tensor(126, dtype=torch.uint8), torch.tensor(127, dtype=torch.uint8)),
            (
                torch.tensor(126, dtype=torch.uint8).view(torch.float8_e8m0fnu),
                torch.tensor(127, dtype=torch.uint8).view(torch.float8_e8m0fnu),
            ),
        ],
        ids=["f32", "uint8", "e8m0"],
    )
    def test_bits_stay_and_the_scale_doubles(self, scale, doubled):
        codes, new_scale = to_fnuz(self.WEIGHT.to(torch.float8_e4m3fn), scale)
        assert decode(codes, "fp8_e4m3fnuz").tolist() == [list(self.HALF)]
        assert new_scale.dtype == doubled.dtype
        assert torch.equal(decode_scale(new_scale), decode_scale(doubled))
        real = dequantize(codes, new_scale, parse_spec("fp8_e4m3fnuz[*x*]"))
        assert torch.equal(real, self.WEIGHT * 0.5)


class TestDecoding:
    """Subnormals read as normal numbers, NaN read as 480 (tile-ai/tilelang#2702, #2704)."""

    CODES = torch.arange(256, dtype=torch.uint8)[None]

    def test_all_e4m3_codes_with_scale_one(self):
        codes = self.CODES.view(torch.float8_e4m3fn)
        real = dequantize(codes, torch.ones(1, 1), parse_spec("fp8_e4m3[*x*]"))
        assert self.CODES[real.isnan()].tolist() == [0x7F, 0xFF]
        assert real[0, :9].tolist() == [i * 2.0**-9 for i in range(9)]
        assert real[0, 0x7E] == 448
        assert torch.signbit(real[0, 0x80])
        bits, torch_bits = real.view(torch.int32), codes.to(torch.float32).view(torch.int32)
        assert torch.equal(bits[~real.isnan()], torch_bits[~real.isnan()])

    def test_all_fnuz_codes_with_scale_one(self):
        codes = self.CODES.view(torch.float8_e4m3fnuz)
        real = dequantize(codes, torch.ones(1, 1), parse_spec("fp8_e4m3fnuz[*x*]"))
        assert self.CODES[real.isnan()].tolist() == [0x80]
        assert real[0, :9].tolist() == [i * 2.0**-10 for i in range(9)]
        assert real[0, 0x7F] == 240

    def test_a_subnormal_e4m3_code_as_a_block_scale(self):
        scale = decode(torch.tensor([[1]], dtype=torch.uint8).view(torch.float8_e4m3fn), "fp8_e4m3")
        assert scale.item() == 0.001953125
        codes = torch.arange(16, dtype=torch.uint8)[None]
        real = dequantize(codes, scale, parse_spec("uint4[1x16]"))
        assert real.tolist() == [[i * 0.001953125 for i in range(16)]]


class TestSaturation:
    """Values beyond 448 that became NaN, NaN that became 448 (huggingface/transformers#42775)."""

    def test_a_static_scale_saturates_and_nan_stays_in_its_row(self):
        rows = torch.tensor([1.0, 10.0, -torch.inf, torch.nan, 2.0])
        x = rows[:, None].expand(5, 256)
        activation, weight = parse_spec("fp8_e4m3[*x*]"), parse_spec("fp8_e4m3[*x*]")
        q = quantize(x, activation, torch.tensor(2.0**-7))
        identity = dequantize(torch.eye(256).to(torch.float8_e4m3fn), torch.tensor(1.0), weight)
        y = dequantize(q.codes, q.scale, activation) @ identity.t()
        assert y[[0, 1, 2, 4], 0].tolist() == [1.0, 3.5, -3.5, 2.0]
        assert torch.equal(y[[0, 1, 2, 4]], y[[0, 1, 2, 4], :1].expand(4, 256))
        assert y[3].isnan().all()
        assert y[[0, 1, 2, 4]].isfinite().all()
