"""Keys and values as codes: exact where they can be, bounded elsewhere, NaN never hidden."""

from __future__ import annotations

import pytest
import torch

from quantdock.errors import FormatError
from quantdock.formats import ELEMENTS, QuantSpec
from quantdock.kv_cache import KVCodec, KVScale
from quantdock.numerics import dequantize, quantize

torch.set_num_threads(1)

FLOATS = ("fp8_e4m3", "fp8_e5m2", "fp8_e4m3fnuz", "fp8_e5m2fnuz")
EVERY = (*FLOATS, "int8")
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def states(*shape, dtype=torch.float32, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def round_trip(codec, x):
    codes, scale = codec.encode(x)
    assert codes.dtype == codec.storage and codes.shape == x.shape
    result = codec.decode(codes, scale, x.dtype)
    assert result.dtype == x.dtype and result.is_contiguous()
    return result


@pytest.mark.parametrize("element", EVERY)
@pytest.mark.parametrize("dtype", DTYPES)
def test_values_of_the_grid_come_back_bit_for_bit(element, dtype):
    every = torch.arange(256, dtype=torch.uint8).view(KVCodec(element).storage).float()
    every = every[every.isfinite()]
    x = (every * 0.5).view(1, 1, 1, -1).to(dtype)
    assert torch.equal(x.float().flatten(), every * 0.5), "the dtype holds them"
    assert torch.equal(round_trip(KVCodec(element, KVScale.of(torch.tensor(0.5))), x), x)


@pytest.mark.parametrize("element", EVERY)
def test_a_static_scale_is_that_of_numerics(element):
    x, scale = states(2, 3, 5, 8), torch.tensor(0.03)
    spec = QuantSpec(element=element)
    expected = quantize(x, spec, scale)
    codec = KVCodec(element, KVScale.of(scale))
    codes, none = codec.encode(x)
    assert none is None and torch.equal(codes.view(torch.uint8), expected.codes.view(torch.uint8))
    assert torch.equal(codec.decode(codes, None, x.dtype), dequantize(codes, scale, spec))


@pytest.mark.parametrize("element", EVERY)
def test_a_dynamic_scale_is_one_for_each_token_and_head(element):
    x = states(2, 3, 5, 8) * torch.logspace(-3, 3, 5).view(1, 1, 5, 1)
    expected = quantize(x, QuantSpec(element=element, rows=1, dynamic=True))
    codes, scale = KVCodec(element).encode(x)
    assert scale.shape == (2, 3, 5, 1)
    assert torch.equal(scale, expected.scale)
    assert torch.equal(codes.view(torch.uint8), expected.codes.view(torch.uint8))
    step = 2.0 ** -ELEMENTS[element].fraction_bits
    error = (round_trip(KVCodec(element), x) - x).abs().amax(-1) / x.abs().amax(-1)
    assert error.max() <= step / 2


def test_heads_have_their_own_scales():
    x = torch.tensor([[[[100.0]], [[100.0]]]])
    scale = KVScale.of(torch.tensor([0.125, 4.0]))
    assert round_trip(KVCodec("fp8_e4m3", scale), x).flatten().tolist() == [56.0, 96.0]
    with pytest.raises(FormatError, match="has 3 heads here, and 2 scales"):
        KVCodec("fp8_e4m3", scale).encode(states(1, 3, 1, 1))


@pytest.mark.parametrize("element", EVERY)
def test_what_is_out_of_range_becomes_the_last_code(element):
    x = torch.tensor([1e9, -1e9, float("inf")]).view(1, 1, 1, 3)
    kind = ELEMENTS[element]
    result = round_trip(KVCodec(element, KVScale.of(torch.tensor(1.0))), x)
    assert result.flatten().tolist() == [kind.largest, kind.lowest, kind.largest]


@pytest.mark.parametrize("element", FLOATS)
def test_nan_stays_nan_beside_numbers(element):
    x = torch.tensor([1.0, float("nan"), -2.0]).view(1, 1, 1, 3)
    result = round_trip(KVCodec(element, KVScale.of(torch.tensor(1.0))), x).flatten()
    assert result.isnan().tolist() == [False, True, False]
    assert result[0] == 1.0 and result[2] == -2.0


@pytest.mark.parametrize("element", EVERY)
def test_nan_with_dynamic_scales_stays_in_its_token(element):
    x = states(1, 1, 3, 4)
    x[0, 0, 1, 2] = float("nan")
    result = round_trip(KVCodec(element), x)
    assert result.isnan().all(-1).flatten().tolist() == [False, True, False]
    assert result[0, 0, ::2].isfinite().all()


def test_zeros_and_no_tokens():
    codec = KVCodec("int8")
    assert torch.equal(round_trip(codec, torch.zeros(1, 2, 3, 4)), torch.zeros(1, 2, 3, 4))
    assert round_trip(codec, torch.zeros(1, 2, 0, 4)).shape == (1, 2, 0, 4)


def test_strided_states_are_read_right():
    x = states(2, 5, 3, 8).transpose(1, 2)
    codec = KVCodec("fp8_e4m3")
    assert torch.equal(round_trip(codec, x), round_trip(codec, x.contiguous()))
